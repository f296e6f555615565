customElements.define("compare-view", class extends HTMLElement {});
