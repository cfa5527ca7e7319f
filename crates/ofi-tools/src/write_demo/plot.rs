//! Plots the ladder.

use std::fmt::Write;

use super::ladder::Rung;

const ROW: usize = 28;
const LABELS: usize = 230;
const BARS: f64 = 420.0;

/// A bar for each step.
pub fn svg(rungs: &[Rung]) -> String {
    let most = rungs.iter().map(|rung| rung.gigabits_per_second).fold(f64::MIN_POSITIVE, f64::max);
    let (width, height) = (LABELS + BARS as usize + 110, rungs.len() * ROW + 40);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <style>text{{fill:#222}}rect{{fill:#3b6ea5}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}rect{{fill:#7fb0e0}}}}</style>\n\
         <text x=\"8\" y=\"20\" font-weight=\"bold\">Remote writes by step, Gb/s</text>\n"
    );
    for (nth, rung) in rungs.iter().enumerate() {
        let (y, bar) = (32 + nth * ROW, rung.gigabits_per_second / most * BARS);
        let text = y + 15;
        let end = LABELS as f64 + bar + 6.0;
        let step = rung.step;
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<text x=\"8\" y=\"{text}\">{step}</text><rect x=\"{LABELS}\" y=\"{y}\" width=\"{bar:.1}\" height=\"20\"/>\
             <text x=\"{end:.1}\" y=\"{text}\">{:.3}</text>",
            rung.gigabits_per_second
        );
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_step_has_the_longest_bar() {
        let rung =
            |step, rate| Rung { step, gigabits_per_second: rate, write_p50_us: 1.0, write_p99_us: 2.0 };
        let svg = svg(&[rung("slow", 1.0), rung("fast", 4.0)]);
        assert!(svg.contains("width=\"105.0\"") && svg.contains("width=\"420.0\""), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 2);
    }
}
