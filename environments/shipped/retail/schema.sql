create table users (
  user_id text primary key, first_name text not null, last_name text not null, email text not null unique,
  street text not null, city text not null, zip_code text not null
);
create table payments (
  payment_id text primary key, user_id text not null references users, kind text not null, balance integer not null
);
create table products (product_id text primary key, name text not null);
create table variants (
  variant_id text primary key, product_id text not null references products, options text not null,
  price integer not null, available integer not null
);
create table orders (
  order_id text primary key, user_id text not null references users, status text not null, delivered_on text,
  payment_id text not null references payments, street text not null, city text not null, zip_code text not null,
  cancel_reason text
);
create table order_lines (
  order_id text not null references orders, variant_id text not null references variants, price integer not null,
  request text, exchange_for text references variants,
  primary key (order_id, variant_id)
);
create table transactions (
  order_id text not null references orders, payment_id text not null references payments, kind text not null,
  amount integer not null
);
create table transfers (transferred integer not null);
