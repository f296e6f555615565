// The images of messages. A message keeps a thumbnail, because the browser's storage is small. The image itself stays in
// memory while the page is open.

import { h } from "./dom.js";

const PIXELS_PER_TOKEN = 48 * 48; // 3 × 3 patches of 16 × 16 pixels
const MARGIN = 4; // pixels sent per pixel that the model sees: the server's own resizing decides what the model sees
const THUMBNAIL_PIXELS = 128 * 128;
const QUALITY = 0.92; // of JPEG
const FORMATS = ["image/png", "image/jpeg", "image/webp", "image/gif"]; // sent unchanged; a browser may read others

const LOST = "Only thumbnails are saved. Images of earlier visits are no longer sent; add them again to ask about them.";

const urls = new WeakMap(); // data: URL by image

/** Read an image file for the next message. Throw an Error if the browser cannot. */
export async function readPicture(file) {
  const element = new Image();
  try {
    if (!file.type.startsWith("image/")) throw new TypeError(file.type);
    element.src = await dataUrl(file);
    await element.decode();
    const thumbnail = drawn(element, THUMBNAIL_PIXELS, "image/jpeg");
    return { name: file.name, type: file.type, element, thumbnail };
  } catch {
    throw new Error(`${file.name} is not an image that this browser can read. Try PNG or JPEG.`);
  }
}

/** Return a picture as an image of a message, of which the model sees `tokens` tokens. A much larger picture is reduced,
 * because every request of the conversation sends it again. */
export function imageOf({ name, type, element, thumbnail }, tokens) {
  const image = { name, thumbnail, tokens };
  const pixels = MARGIN * tokens * PIXELS_PER_TOKEN;
  const unchanged = FORMATS.includes(type) && element.naturalWidth * element.naturalHeight <= pixels;
  urls.set(image, unchanged ? element.src : drawn(element, pixels, type === "image/png" ? type : "image/jpeg"));
  return image;
}

/** Return the content of a message for a request. Images of which only the thumbnail is left are not sent. */
export function contentOf({ content, images = [] }) {
  const sent = images.filter((image) => urls.has(image));
  if (!sent.length) return content;
  const parts = sent.map((image) => ({ type: "image_url", image_url: { url: urls.get(image) }, tokens: image.tokens }));
  return content ? [...parts, { type: "text", text: content }] : parts;
}

/** Return the thumbnails of a message, with a note if nothing else is left of an image. */
export function imagesView(images) {
  const lost = images.some((image) => !urls.has(image));
  return [
    h(
      "ul",
      { class: "images", "aria-label": "Images" },
      images.map((image) => h("li", {}, thumbnailView(image))),
    ),
    lost ? h("p", { class: "hint" }, LOST) : null,
  ];
}

export function thumbnailView({ name, thumbnail }) {
  return h("img", { src: thumbnail, alt: name });
}

/** Return a picture with at most this many pixels as a data: URL. */
function drawn(element, pixels, type) {
  const { naturalWidth: width, naturalHeight: height } = element;
  const scale = Math.min(1, Math.sqrt(pixels / (width * height)));
  const side = (length) => Math.max(1, Math.floor(scale * length));
  const canvas = h("canvas", { width: side(width), height: side(height) });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // behind transparent parts, as on the server
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(element, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(type, QUALITY);
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
