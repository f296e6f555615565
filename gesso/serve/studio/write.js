customElements.define("write-view", class extends HTMLElement {});
