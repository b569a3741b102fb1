// Draws the charts, again when the theme changes. Vega follows changes of the width by itself.
"use strict";
{
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = [];

  const config = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const [text, soft, line] = [of("--text"), of("--soft"), of("--line")];
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: "transparent",
      font,
      view: { stroke: "transparent" },
      axis: {
        labelColor: text, titleColor: soft, gridColor: line, domainColor: line, tickColor: line,
        labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal",
        labelOverlap: true, labelLimit: 110,
      },
      legend: { labelColor: text, titleColor: soft, labelFontSize: 11, symbolType: "square" },
      text: { color: text },
      rule: { color: soft },
      tick: { color: text },
      range: {
        category: dark.matches
          ? ["#6db3f2", "#f5a25d", "#5ec9a7", "#d69bf0", "#f27d7d", "#d8c04f", "#9fb0c3",
            "#f29cc2", "#8fd0e0"]
          : ["#1f6fb2", "#d9661f", "#1d8a67", "#8a4fb5", "#c23b3b", "#96800f", "#5b6b7d",
            "#c2508b", "#2f8fa3"],
      },
    };
  };

  const draw = async () => {
    document.body.dataset.drawn = "no";
    for (const view of drawn.splice(0)) view.finalize();
    for (const place of document.querySelectorAll("[data-chart]")) {
      try {
        const options = {
          renderer: "svg", actions: false, config: config(),
          tooltip: { theme: dark.matches ? "dark" : "light" },
        };
        drawn.push(await vegaEmbed(place, charts[place.dataset.chart], options));
      } catch (error) {
        place.textContent = `This chart cannot be drawn: ${error}`;
        console.error(error);
      }
    }
    document.body.dataset.drawn = "yes";
  };

  dark.addEventListener("change", draw);
  draw();
}
