/* Worker in a frame, so that search works in pages opened as files: browsers load no file's script into a real one. */
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    onmessage = null;
    #frame = document.createElement("iframe");
    #loaded;

    constructor(url) {
      super();
      this.addEventListener("message", (event) => this.onmessage?.(event));
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const scope = this.#frame.contentWindow;
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src, onload: resolve, onerror: reject });
          scope.document.body.append(script);
        });
      scope.importScripts = async (...urls) => {
        for (const each of urls) await load(each);
      };
      this.#loaded = load(url);
    }

    postMessage(data) {
      this.#loaded.then(() => {
        const scope = this.#frame.contentWindow;
        scope.dispatchEvent(new scope.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
