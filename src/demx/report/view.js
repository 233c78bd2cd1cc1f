"use strict";
// Clusters of balls that turn: drag to rotate, a slider over samples. One canvas, no library.
for (const view of document.querySelectorAll(".view")) {
  const data = JSON.parse(view.querySelector("script").textContent);
  const canvas = view.querySelector("canvas"), pen = canvas.getContext("2d");
  const slider = view.querySelector("input"), label = view.querySelector("output");
  const button = view.querySelector("button");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const flat = data.dim < 3;
  let turn = flat ? [1, 0, 0, 0, 1, 0, 0, 0, 1] : [0.9, 0, 0.44, 0.15, 0.94, -0.31, -0.41, 0.34, 0.85];
  let spinning = !still.matches && !flat, visible = true, waiting = false, last = 0, frames = 0;

  // the rotation by a (about the vertical axis) and b (about the horizontal one), then the old one
  function rotate(a, b) {
    const c = Math.cos(a), s = Math.sin(a), d = Math.cos(b), e = Math.sin(b);
    const by = [c, 0, s, s * e, d, -c * e, -s * d, e, c * d], old = turn;
    turn = by.map((_, i) => {
      const row = 3 * Math.floor(i / 3), column = i % 3;
      return by[row] * old[column] + by[row + 1] * old[column + 3] + by[row + 2] * old[column + 6];
    });
  }

  // near is the colour of a ball, far fades into the paper
  function shade(colour, depth) {
    const paper = dark.matches ? [27, 31, 38] : [243, 244, 242], fade = 0.7 * (1 - depth);
    return "rgb(" + colour.map((v, i) => Math.round(v + fade * (paper[i] - v))).join(" ") + ")";
  }

  function draw() {
    const ratio = Math.min(2, devicePixelRatio || 1), box = canvas.getBoundingClientRect();
    const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    pen.clearRect(0, 0, width, height);
    const scale = 0.5 * Math.min(width, height) / (data.reach + data.radius);
    const points = data.samples[slider.value].map((x, i) => {
      const p = [0, 3, 6].map((r) => turn[r] * x[0] + turn[r + 1] * x[1] + turn[r + 2] * x[2]);
      const zoom = flat ? 1 : 1 / (1 - p[2] / (5 * data.reach));
      const kind = data.kinds[i], r = data.sizes[kind] * data.radius * scale * zoom;
      return { at: p, depth: 0.5 + 0.5 * p[2] / data.reach, r: r, colour: data.colours[kind],
               x: width / 2 + p[0] * scale * zoom, y: height / 2 - p[1] * scale * zoom };
    });
    const parts = points.map((p) => ({ depth: flat ? 1 : p.depth, ball: p }));
    for (let i = 0; i < points.length; i++) {
      for (let j = 0; j < i; j++) {
        const a = points[i], b = points[j];
        if (Math.hypot(...a.at.map((v, k) => v - b.at[k])) < data.bond) {
          parts.push({ depth: flat ? 0.4 : (a.depth + b.depth) / 2, ends: [a, b] });
        }
      }
    }
    parts.sort((a, b) => a.depth - b.depth);
    for (const { depth, ball, ends } of parts) {
      if (ends) {
        pen.strokeStyle = shade([138, 143, 152], depth);
        pen.lineWidth = 0.22 * (ends[0].r + ends[1].r) / 2;
        pen.beginPath();
        pen.moveTo(ends[0].x, ends[0].y);
        pen.lineTo(ends[1].x, ends[1].y);
        pen.stroke();
        continue;
      }
      const light = pen.createRadialGradient(
        ball.x - 0.35 * ball.r, ball.y - 0.4 * ball.r, 0.05 * ball.r, ball.x, ball.y, ball.r);
      light.addColorStop(0, shade(ball.colour.map((v) => v + 0.7 * (255 - v)), depth));
      light.addColorStop(0.45, shade(ball.colour, depth));
      light.addColorStop(1, shade(ball.colour.map((v) => 0.57 * v), depth));
      pen.fillStyle = light;
      pen.beginPath();
      pen.arc(ball.x, ball.y, ball.r, 0, 2 * Math.PI);
      pen.fill();
    }
    canvas.dataset.frames = ++frames;
  }

  function frame(now) {
    waiting = false;
    if (spinning && visible) {
      rotate(0.35 * Math.min(0.1, (now - last) / 1000), 0);
      last = now;
      ask();
    }
    draw();
  }

  function ask() {
    if (!waiting) {
      waiting = true;
      requestAnimationFrame(frame);
    }
  }

  function tell() {
    const i = Number(slider.value);
    label.textContent = `sample ${i + 1} of ${data.samples.length}, energy ${data.energies[i]}`;
    button.textContent = spinning ? "stop" : "turn";
    canvas.setAttribute("aria-label", label.textContent);
    ask();
  }

  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = [event.clientX, event.clientY];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held) return;
    const reach = canvas.getBoundingClientRect().width / 4;
    rotate((event.clientX - held[0]) / reach, (event.clientY - held[1]) / reach);
    held = [event.clientX, event.clientY];
    ask();
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, () => { held = null; });
  }
  slider.addEventListener("input", tell);
  button.addEventListener("click", () => { spinning = !spinning; tell(); });
  dark.addEventListener("change", ask);
  still.addEventListener("change", () => { spinning = spinning && !still.matches; tell(); });
  addEventListener("resize", ask);
  new IntersectionObserver((seen) => { visible = seen[0].isIntersecting; ask(); }).observe(canvas);
  draw();
  tell();
}
