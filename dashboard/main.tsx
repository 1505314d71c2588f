import { render } from "preact";
import { App } from "./app.tsx";
import "@picocss/pico/css/pico.min.css";
import "uplot/dist/uPlot.min.css";
import "./style.css";

const root = document.getElementById("app");
if (root !== null) render(<App />, root);
