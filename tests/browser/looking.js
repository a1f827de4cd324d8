// What looking.py asks of a page. `looking` exists only while a test looks.
window.looking = (() => {
  const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const shown = (element) => element.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const named = (element) => {
    if (!element) return "nothing";
    if (element === document.body) return "<body>";
    const text = (element.getAttribute("aria-label") || element.textContent || "").trim().replace(/\s+/g, " ");
    return `<${element.tagName.toLowerCase()}${element.id ? "#" + element.id : ""}> ${text.slice(0, 40)}`;
  };

  // r, g, b in 0..1 and alpha of any colour that CSS can write.
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const color = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = "#000";
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
  };
  const light = ([r, g, b]) => {
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const over = (above, below) => [0, 1, 2].map((i) => above[i] * above[3] + below[i] * (1 - above[3]));
  const ratio = (one, other) => {
    const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  // What lies behind an element: the colours of it and of all that hold it, the page's last.
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      layers.push(color(getComputedStyle(at).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    const canvasColor = matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#fff";
    return layers.reduceRight((below, above) => over(above, below), color(canvasColor));
  };

  const structure = () => {
    const found = [];
    const count = all("h1").length;
    if (count !== 1) found.push(`it has ${count} h1`);
    if (!document.documentElement.lang) found.push("it states no language");
    if (!document.title.trim()) found.push("it has no title");
    if (!document.querySelector("meta[name=viewport]")) found.push("it says nothing to a phone (meta viewport)");
    if (document.compatMode !== "CSS1Compat") found.push("it has no doctype");
    for (const element of all("[src], [srcset], link, iframe, object, embed, base, form[action], image, use")) {
      const where = ["src", "srcset", "href", "data", "xlink:href", "action"].map((name) => element.getAttribute(name));
      if (where.some((url) => url && !/^(data:|#)/.test(url))) found.push(`${element.outerHTML.slice(0, 80)} is not in the file`);
    }
    for (const sheet of document.styleSheets) {
      const text = [...sheet.cssRules].map((rule) => rule.cssText).join("\n");
      for (const [, url] of text.matchAll(/(?:url\(|@import\s+)["']?(?!["']?(?:data:|#))([^)"']+)/g)) found.push(`a style takes ${url}`);
    }
    for (const element of all("*")) {
      if (element.matches("[data-planted]")) found.push(`text became <${element.tagName.toLowerCase()}>`);
      const handler = [...element.attributes].find((one) => one.name.startsWith("on"));
      if (handler) found.push(`<${element.tagName.toLowerCase()}> has ${handler.name}`);
    }
    if (window.planted) found.push("planted text was run as a script");
    const ids = all("[id]").map((element) => element.id);
    const twice = ids.filter((id, place) => ids.indexOf(id) !== place);
    if (twice.length) found.push(`two elements are called ${twice[0]}`);
    return found;
  };

  const links = () => all("a[href]").map((a) => ({href: a.getAttribute("href"), text: a.textContent.trim()}));

  const unfold = () => all("details").forEach((element) => { element.open = true; });

  const tooWide = (width) => {
    const wide = document.documentElement.scrollWidth;
    if (wide <= width) return [];
    const scrolls = (element) => /auto|scroll|hidden|clip/.test(getComputedStyle(element).overflowX);
    const held = (element) => {
      for (let at = element.parentElement; at && at !== document.body; at = at.parentElement) if (scrolls(at)) return true;
      return false;
    };
    const out = all("body *").filter((element) => element.getBoundingClientRect().right > width + 1 && !held(element));
    return [`it is ${wide} pixels wide, because of ${named(out.at(-1))}`];
  };

  // Words in pictures, which axe passes over, and the lines of plots.
  const faint = () => {
    const found = [];
    for (const text of all("svg text").filter((one) => one.textContent.trim() && shown(one))) {
      const fill = color(getComputedStyle(text).fill), behind = behindText(text);
      const contrast = ratio(over(fill, behind), behind);
      if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(2)} of "${text.textContent.trim()}" in a picture`);
    }
    return [...new Set(found)].slice(0, 5);
  };
  // A box that the text stands on, where one is drawn before it, or else the ground of the picture.
  const behindText = (text) => {
    const box = text.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    const below = ground(text.ownerSVGElement);
    const boxes = all("rect", text.ownerSVGElement).filter((rect) => {
      const at = rect.getBoundingClientRect();
      const before = rect.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      return before && at.left <= x && x <= at.right && at.top <= y && y <= at.bottom;
    });
    return boxes.reduce((behind, rect) => {
      const style = getComputedStyle(rect);
      if (style.fill === "none" || !shown(rect)) return behind;
      const fill = color(style.fill);
      fill[3] *= Number(style.fillOpacity) * Number(style.opacity);
      return over(fill, behind);
    }, below);
  };

  // Words of a drawing that lie on each other, or beyond its edge.
  const crowded = () => {
    const found = [];
    for (const drawing of all("svg").filter(shown)) {
      const name = drawing.getAttribute("aria-label") || "a drawing";
      const home = drawing.getBoundingClientRect();
      const words = all("text", drawing).filter((one) => one.textContent.trim() && shown(one))
        .map((one) => ({text: one.textContent.trim(), at: one.getBoundingClientRect()}));
      const out = words.find(({at}) => at.left < home.left - 1 || at.right > home.right + 1 || at.top < home.top - 1 || at.bottom > home.bottom + 1);
      if (out) found.push(`${name}: "${out.text}" is cut off`);
      const over = ({at: a}, {at: b}) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
      const first = words.find((one, place) => words.slice(place + 1).some((other) => over(one, other)));
      if (first) found.push(`${name}: "${first.text}" and another text lie on each other`);
    }
    return found;
  };

  const theme = (scheme) => {
    const behind = light(ground(document.body));
    return (scheme === "dark") === behind < 0.2 ? [] : [`the ground does not follow the system's theme`];
  };

  const darkGrounds = () => {
    const found = [];
    const page = innerWidth * innerHeight;
    for (const element of [document.documentElement, document.body, ...all("body *")]) {
      const box = element.getBoundingClientRect();
      const back = color(getComputedStyle(element).backgroundColor);
      if (back[3] > 0.5 && light(back) < 0.3 && box.width * box.height > 0.02 * page) found.push(`${named(element)} has a dark ground`);
    }
    if (light(color(getComputedStyle(document.body).color)) > 0.3) found.push("the words are light");
    return found.slice(0, 3);
  };

  const tabbable = () => all(FOCUSABLE).filter((one) => one.tabIndex >= 0 && !one.disabled && shown(one));
  const label = (element) => {
    const place = tabbable().indexOf(element);
    return place < 0 ? named(element) : `${named(element)} (${place + 1})`;
  };
  // Of a group of radio buttons the Tab key reaches one.
  const controls = (most) => tabbable()
    .filter((one) => one.type !== "radio" || one.checked)
    .slice(0, most).map(label);
  const reached = () => {
    const element = document.activeElement;
    const style = getComputedStyle(element);
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    return {name: label(element), shown: outlined || style.boxShadow !== "none"};
  };

  return {structure, links, unfold, tooWide, faint, crowded, theme, darkGrounds, controls, reached};
})();
undefined;
