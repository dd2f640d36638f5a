// A page that is opened from disk may start no worker; here a hidden frame runs the script in its place.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      // What goes to a worker and comes from it is a copy.
      this.inside.postMessage = (data) => {
        const copy = structuredClone(data);
        setTimeout(() => this.onmessage?.({ data: copy }));
      };
      const script = this.inside.document.createElement("script");
      this.loaded = new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
      });
      this.loaded.catch((error) => this.onerror?.(error));
      script.src = new URL(url, location.href).href;
      this.inside.document.body.append(script);
    }

    postMessage(data) {
      const event = new this.inside.MessageEvent("message", { data: structuredClone(data) });
      this.loaded.then(() => this.inside.dispatchEvent(event), () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
