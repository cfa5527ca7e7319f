//! A topology as a picture: nested boxes, with accelerators and the NICs that serve them in one colour.

use std::fmt::Write;

use super::render::Below;
use super::{Grouping, NodeKind, Topology};

const CHIP: (f64, f64) = (210.0, 40.0);
const GAP: f64 = 10.0;
const TITLE: f64 = 22.0;
/// Boxes side by side before a new row begins.
const COLUMNS: usize = 4;
const COLOURS: [&str; 8] =
    ["#8dd3c7", "#fdb462", "#bebada", "#fb8072", "#80b1d3", "#b3de69", "#fccde5", "#ffed6f"];
const GREY: &str = "#e0e0e0";

/// A box with its place relative to the box around it.
struct Area {
    at: (f64, f64),
    size: (f64, f64),
    lines: Vec<String>,
    colour: &'static str,
    inner: Vec<Area>,
}

impl Topology {
    /// The picture, as a complete file.
    pub fn to_svg(&self, grouping: &Grouping) -> String {
        let machine = self.area(0, grouping);
        let (width, height) = (machine.size.0 + 2.0 * GAP, machine.size.1 + 2.0 * GAP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        machine.write((GAP, GAP), &mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn area(&self, node: usize, grouping: &Grouping) -> Area {
        let inner: Vec<Area> = self.below(node).into_iter().map(|item| self.item(item, grouping)).collect();
        let columns = match self.nodes[node].kind {
            NodeKind::Machine | NodeKind::Host { .. } => 2,
            _ => COLUMNS,
        };
        Area::around(self.node_title(node), inner, columns)
    }

    fn item(&self, item: Below, grouping: &Grouping) -> Area {
        match item {
            Below::Node(node) => self.area(node, grouping),
            Below::Accelerator(index) => {
                Area::chip(self.accelerators[index].title(index), COLOURS[index % COLOURS.len()])
            }
            Below::Nic(index) => {
                let mut served = (0..grouping.nics.len()).filter(|&at| grouping.nics[at].contains(&index));
                let colour = match (served.next(), served.next()) {
                    (Some(only), None) => COLOURS[only % COLOURS.len()],
                    _ => GREY,
                };
                Area::chip(self.nics[index].title(), colour)
            }
        }
    }
}

impl Area {
    /// A device: its title in two lines, broken at a comma.
    fn chip(title: String, colour: &'static str) -> Self {
        let lines = match title.split_once(", ") {
            Some((first, rest)) => vec![first.to_string(), rest.to_string()],
            None => vec![title],
        };
        Self { at: (0.0, 0.0), size: CHIP, lines, colour, inner: Vec::new() }
    }

    /// A box around others, in rows.
    fn around(title: String, mut inner: Vec<Area>, columns: usize) -> Self {
        let mut size = (CHIP.0 + 2.0 * GAP, TITLE + GAP);
        let mut top = TITLE + GAP;
        for row in inner.chunks_mut(columns) {
            let (mut left, mut height) = (GAP, 0.0_f64);
            for area in row {
                area.at = (left, top);
                left += area.size.0 + GAP;
                height = height.max(area.size.1);
            }
            top += height + GAP;
            size = (size.0.max(left), top);
        }
        Self { at: (0.0, 0.0), size, lines: vec![title], colour: "none", inner }
    }

    fn write(&self, base: (f64, f64), svg: &mut String) {
        let (x, y) = (base.0 + self.at.0, base.1 + self.at.1);
        let (width, height) = self.size;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{}\" stroke=\"#606060\"/>",
            self.colour
        );
        for (nth, line) in self.lines.iter().enumerate() {
            let (x, y) = (x + 8.0, y + 16.0 + 15.0 * nth as f64);
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\">{}</text>", escaped(line));
        }
        for area in &self.inner {
            area.write((x, y), svg);
        }
    }
}

/// Escapes text. Names come from the system: they must not act as markup, and control characters are invalid in XML.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            other if other.is_control() => safe.push('?'),
            other => safe.push(other),
        }
    }
    safe
}
