customElements.define("server-view", class extends HTMLElement {});
