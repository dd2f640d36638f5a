"""What the Atropos trajectory API answers, one model per path: anything else did not come from it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**53)]
Size = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class ApiAnswer(BaseModel):
    """One answer; fields that nobody here needs are not read."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Info(ApiAnswer):
    """`GET /info`."""

    batch_size: Size
    """Rows of a batch; -1: no trainer has registered."""
    max_token_len: Size


class Status(ApiAnswer):
    """`GET /status`."""

    current_step: Count
    queue_size: Count


class EnvStatus(ApiAnswer):
    """`GET /status-env`."""

    queue_size: Count
    self_queue_size: Count
    max_group_size: Annotated[Count, Field(ge=1)]
    unallocated_fraction: Annotated[float, Field(le=1)]


class Registered(ApiAnswer):
    """`POST /register-env` of an environment that was taken in."""

    status: Literal["success"]
    env_id: Annotated[int, Field(ge=0, lt=2**31)]
    wandb_name: Annotated[str, Field(pattern=r"_[0-9]{1,9}$")]
    """The name, and how many of it were there before."""
    num_steps: Size


class NotYet(ApiAnswer):
    """`POST /register-env` before a trainer has started."""

    status: Literal["wait for trainer to start"]


class Taken(ApiAnswer):
    """`POST /scored_data`."""

    status: Literal["received", "buffered"]


class Done(ApiAnswer):
    """`POST /disconnect-env`; a number that it does not know is none to disconnect."""

    status: Literal["success", "failure"]
