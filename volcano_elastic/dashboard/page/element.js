/** Makes elements, and brings a tree up to date without losing focus or scrolling. */

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown", "onpointermove", "onpointerleave"];

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  // Always as text: nothing of the cluster is ever read as HTML.
  element.append(...children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

/** Returns an HTML element. Attributes that are null or false are left out. */
export function h(tag, attributes, ...children) {
  return made(document.createElement(tag), attributes, children);
}

/** Returns an SVG element. */
export function s(tag, attributes, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

/** Makes `old` look as `fresh` does, element by element: those of the same tag stay, with their focus. */
export function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // What the viewer has unfolded stays so.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) old[name] = fresh[name];
  patchChildren(old, [...fresh.childNodes]);
}

/** Makes the children of `parent` look as `fresh` do. */
export function patchChildren(parent, fresh) {
  const old = [...parent.childNodes];
  fresh.forEach((node, i) => (i < old.length ? patch(old[i], node) : parent.append(node)));
  for (const node of old.slice(fresh.length)) node.remove();
}
