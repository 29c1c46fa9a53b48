//! A roofline as a page for a browser: operations a second over operations a byte, both logarithmic, and every launch in a
//! table. It loads nothing from the network and runs no script; it is also well-formed XML, so that a parser can check it.

use super::html::{Escaped, head};
use super::timeline::{CHIP, COLOURS, OTHER, WIDTH, svg};
use crate::machine;
use crate::roofline::{Ceilings, Limit, Point, Roofline, number};
use devbay_host::internals::core::units::{count, duration, percent};
use std::collections::HashMap;
use std::fmt::{self, Write};

/// Height of the drawing.
const HEIGHT: f64 = 560.0;
/// Space for the numbers at the left, and for those at the bottom.
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 44.0;
/// Half of the last number.
const RIGHT: f64 = 20.0;
/// Radius of the dot of a launch that takes no time, and what one that takes all of it has more: areas are times.
const RADIUS: (f64, f64) = (3.0, 30.0);
/// Maximum number of rows of the table.
const ROWS_MAX: usize = 3000;

/// Returns a roofline as a page; `model` and `device` are their names.
pub fn page(model: &str, device: &str, roofline: &Roofline) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(model, device, roofline, &mut out);
    out
}

fn write_page(model: &str, device: &str, roofline: &Roofline, out: &mut String) -> fmt::Result {
    head(out, &format!("Roofline of {model}"), CHIP)?;
    writeln!(out, "<p class=\"quiet\">{}; {}</p>", machine::now(), Escaped(&machine::describe()))?;
    writeln!(
        out,
        "<p>{}, one thread. A dot is a launch; its area is its time in a run.</p>",
        Escaped(device)
    )?;
    match &roofline.ceilings {
        Some(ceilings) => writeln!(
            out,
            "<p class=\"quiet\">The lines are what one thread can do at most: {}, and {}. A launch left of the ridge at {} \
             operations a byte is limited by memory, right of it by arithmetic. Bytes count each operand once. A dot above \
             the sloping line has data in a cache.</p>",
            Escaped(&ceilings.arithmetic()),
            Escaped(&ceilings.memory()),
            number(ceilings.ridge())
        )?,
        None => writeln!(out, "<p>No lines: {}.</p>", Escaped(roofline.why_without()))?,
    }
    let mut by_op: HashMap<&str, f64> = HashMap::new();
    for point in &roofline.points {
        *by_op.entry(&point.launch.op).or_default() += point.run_ns();
    }
    let mut ops: Vec<(&str, f64)> = by_op.into_iter().collect();
    ops.sort_by(|(a_name, a), (b_name, b)| b.total_cmp(a).then(a_name.cmp(b_name)));
    let colours: HashMap<&str, &str> = ops.iter().map(|(op, _)| *op).zip(COLOURS.iter().copied()).collect();
    write!(out, "<p>")?;
    for (op, _) in ops.iter().take(COLOURS.len()) {
        let colour = colours[op];
        write!(out, "<i class=\"chip\" style=\"background: {colour}\"></i>{} &#160; ", Escaped(op))?;
    }
    if ops.len() > COLOURS.len() {
        write!(out, "<i class=\"chip\" style=\"background: {OTHER}\"></i>others")?;
    }
    writeln!(out, "</p>")?;
    let mut points: Vec<&Point> = roofline.points.iter().collect();
    points.sort_by(|a, b| b.run_ns().total_cmp(&a.run_ns()));
    let axes = drawing(&points, roofline.ceilings.as_ref(), &colours, out)?;
    let n_left = points.iter().filter(|point| place(point).is_none()).count();
    if n_left > 0 && axes {
        writeln!(
            out,
            "<p class=\"quiet\">{} without arithmetic, or without counts, only in the table.</p>",
            count(n_left, "launch")
        )?;
    }
    rows(&points, roofline, &colours, out)?;
    writeln!(out, "</body>\n</html>")
}

/// Returns a launch's place: operations a byte and a nanosecond; None without arithmetic, which has none on such axes.
fn place(point: &Point) -> Option<(f64, f64)> {
    point.intensity().zip(point.flops_per_ns()).filter(|(x, y)| *x > 0.0 && *y > 0.0)
}

/// One logarithmic axis: powers of ten at both ends, and the pixels that they are at.
struct Axis {
    powers: (i32, i32),
    pixels: (f64, f64),
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (least, most) =
            values.fold((f64::INFINITY, 0.0f64), |(least, most), value| (least.min(value), most.max(value)));
        let (least, most) = (least.log10().floor() as i32, most.log10().ceil() as i32);
        Self { powers: (least, most.max(least + 1)), pixels }
    }

    fn at(&self, value: f64) -> f64 {
        let (least, most) = self.powers;
        let part = (value.log10() - f64::from(least)) / f64::from(most - least);
        self.pixels.0 + part.clamp(0.0, 1.0) * (self.pixels.1 - self.pixels.0)
    }

    fn ends(&self) -> (f64, f64) {
        (10f64.powi(self.powers.0), 10f64.powi(self.powers.1))
    }
}

/// Writes the drawing; returns whether there was anything to draw.
fn drawing(
    points: &[&Point],
    ceilings: Option<&Ceilings>,
    colours: &HashMap<&str, &str>,
    out: &mut String,
) -> Result<bool, fmt::Error> {
    let placed: Vec<(&Point, f64, f64)> =
        points.iter().filter_map(|point| place(point).map(|(x, y)| (*point, x, y))).collect();
    if placed.is_empty() {
        writeln!(out, "<p>No launch has arithmetic to place it.</p>")?;
        return Ok(false);
    }
    let ridge = ceilings.map(|ceilings| (ceilings.ridge(), ceilings.flops_per_ns));
    // Twice the peak, so that its line has room above.
    let corners = ridge.into_iter().flat_map(|(x, y)| [(x, y), (x, 2.0 * y)]);
    let corners: Vec<(f64, f64)> = placed.iter().map(|&(_, x, y)| (x, y)).chain(corners).collect();
    let x_axis = Axis::of(corners.iter().map(|(x, _)| *x), (LEFT, WIDTH - RIGHT));
    let y_axis = Axis::of(corners.iter().map(|(_, y)| *y), (HEIGHT - BOTTOM, 8.0));
    svg(HEIGHT, "Operations a second over operations a byte", out)?;
    grid(&x_axis, &y_axis, out)?;
    if let Some(ceilings) = ceilings {
        roofs(ceilings, &x_axis, &y_axis, out)?;
    }
    for (point, x, y) in placed {
        let colour = colours.get(point.launch.op.as_str()).copied().unwrap_or(OTHER);
        writeln!(
            out,
            "<g><title>{}, {}: {}, {} of the time; {} GFLOP/s, {} GB/s, {} flop/byte</title>\
             <circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"0.75\" stroke=\"#fff\"/></g>",
            Escaped(&point.launch.node),
            Escaped(&point.shapes()),
            duration(point.run_ns()),
            percent(point.share),
            number(y),
            number(point.bytes_per_ns().unwrap_or(0.0)),
            number(x),
            x_axis.at(x),
            y_axis.at(y),
            RADIUS.0 + RADIUS.1 * point.share.sqrt()
        )?;
    }
    writeln!(out, "</svg>\n</div>")?;
    Ok(true)
}

/// Writes lines and numbers at powers of ten.
fn grid(x_axis: &Axis, y_axis: &Axis, out: &mut String) -> fmt::Result {
    let ((left, right), (bottom, top)) = (x_axis.pixels, y_axis.pixels);
    for power in x_axis.powers.0..=x_axis.powers.1 {
        let x = x_axis.at(10f64.powi(power));
        writeln!(
            out,
            "<path d=\"M{x:.1} {top:.1} V{bottom:.1}\" stroke=\"#d5d5da\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\">{}</text>",
            bottom + 16.0,
            10f64.powi(power)
        )?;
    }
    for power in y_axis.powers.0..=y_axis.powers.1 {
        let y = y_axis.at(10f64.powi(power));
        writeln!(
            out,
            "<path d=\"M{left:.1} {y:.1} H{right:.1}\" stroke=\"#d5d5da\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\">{}</text>",
            left - 6.0,
            y + 4.0,
            10f64.powi(power)
        )?;
    }
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"12\">operations a byte (flop/byte)</text>\
         <text x=\"12\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"12\" transform=\"rotate(-90 12 {:.1})\">GFLOP/s</text>",
        (left + right) / 2.0,
        HEIGHT - 8.0,
        (bottom + top) / 2.0,
        (bottom + top) / 2.0
    )
}

/// Writes the two limits, from the left end to the ridge and on to the right end.
fn roofs(ceilings: &Ceilings, x_axis: &Axis, y_axis: &Axis, out: &mut String) -> fmt::Result {
    let ((x_least, x_most), (y_least, _)) = (x_axis.ends(), y_axis.ends());
    let from = x_least.max(y_least / ceilings.bytes_per_ns);
    let (ridge_x, ridge_y) = (x_axis.at(ceilings.ridge()), y_axis.at(ceilings.flops_per_ns));
    let (from_x, from_y) = (x_axis.at(from), y_axis.at(from * ceilings.bytes_per_ns));
    writeln!(
        out,
        "<path fill=\"none\" stroke=\"#1b1b1f\" stroke-width=\"2\" d=\"M{from_x:.1} {from_y:.1} L{ridge_x:.1} {ridge_y:.1} H{:.1}\"/>",
        x_axis.at(x_most)
    )?;
    let angle = (ridge_y - from_y).atan2(ridge_x - from_x).to_degrees();
    let (x, y) = ((from_x + ridge_x) / 2.0 - 8.0, (from_y + ridge_y) / 2.0 - 8.0);
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"12\">{} GFLOP/s</text>\
         <text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" font-size=\"12\" transform=\"rotate({angle:.1} {x:.1} {y:.1})\">{} GB/s</text>",
        x_axis.pixels.1,
        ridge_y - 8.0,
        number(ceilings.flops_per_ns),
        number(ceilings.bytes_per_ns)
    )
}

/// Writes the launches, the longest first.
fn rows(
    points: &[&Point],
    roofline: &Roofline,
    colours: &HashMap<&str, &str>,
    out: &mut String,
) -> fmt::Result {
    writeln!(
        out,
        "<div class=\"table\">\n<table>\n<tr><th>Node</th><th>Shapes</th><th class=\"number\">Time</th><th class=\"number\">Share</th>\
         <th class=\"number\">GFLOP/s</th><th class=\"number\">GB/s</th><th class=\"number\">flop/byte</th>\
         <th class=\"number\">Of its limit</th><th>Limit</th></tr>"
    )?;
    let shown = |value: Option<f64>| value.map_or("-".to_owned(), number);
    for point in points.iter().take(ROWS_MAX) {
        let colour = colours.get(point.launch.op.as_str()).copied().unwrap_or(OTHER);
        writeln!(
            out,
            "<tr><td class=\"node\"><i class=\"chip\" style=\"background: {colour}\"></i>{}</td><td>{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
            Escaped(&point.launch.node),
            Escaped(&point.shapes()),
            duration(point.run_ns()),
            percent(point.share),
            shown(point.flops_per_ns()),
            shown(point.bytes_per_ns()),
            shown(point.intensity()),
            roofline.of_limit(point).map_or("-".to_owned(), percent),
            point.limit.map_or("-", Limit::name)
        )?;
    }
    writeln!(out, "</table>\n</div>")?;
    if let Some(n) = points.len().checked_sub(ROWS_MAX).filter(|n| *n > 0) {
        writeln!(out, "<p class=\"quiet\">{n} more launches are not shown; they take less.</p>")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Axis;

    #[test]
    fn axes_end_at_powers_of_ten() {
        let axis = Axis::of([0.3, 20.0].into_iter(), (0.0, 300.0));
        assert_eq!(axis.powers, (-1, 2));
        assert!((axis.at(1.0) - 100.0).abs() < 1e-9 && (axis.at(10.0) - 200.0).abs() < 1e-9);
        assert_eq!((axis.at(0.001), axis.at(1e9)), (0.0, 300.0));
        assert_eq!(Axis::of([1.0].into_iter(), (0.0, 1.0)).powers, (0, 1));
    }
}
