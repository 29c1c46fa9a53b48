//! Layout and colours of boxes on a page.

use super::Drawn;

/// Width of a box, in the drawing's own units; a line of text is 16 high.
pub const BOX_WIDTH: f64 = 176.0;
/// Space between boxes of a row.
const GAP_X: f64 = 16.0;
/// Space between rows, for edges.
const GAP_Y: f64 = 36.0;
const MARGIN: f64 = 8.0;
/// Heights of the cheapest and of the most expensive box.
const HEIGHT_MIN: f64 = 58.0;
const HEIGHT_MAX: f64 = 130.0;
/// Maximum number of boxes side by side; a longer row wraps.
const COLUMNS_MAX: usize = 4;

/// Position of a box.
#[derive(Clone, Copy, Default)]
pub struct Position {
    pub x: f64,
    pub y: f64,
    pub height: f64,
    /// From 0 for no cost to 1 for the most expensive box.
    pub weight: f64,
}

/// Positions of a stage's boxes, and the overall size.
pub struct Page {
    pub places: Vec<Position>,
    pub width: f64,
    pub height: f64,
}

impl Page {
    pub fn of(stage: &Drawn<'_>) -> Self {
        let most = stage.boxes.iter().map(|boxed| boxed.cost_ns).fold(0.0, f64::max);
        let mut places: Vec<Position> = stage
            .boxes
            .iter()
            .map(|boxed| {
                let weight = if most > 0.0 { boxed.cost_ns / most } else { 0.0 };
                Position {
                    height: HEIGHT_MIN + (HEIGHT_MAX - HEIGHT_MIN) * weight,
                    weight,
                    ..Position::default()
                }
            })
            .collect();
        let rows = stage.rows();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0).clamp(1, COLUMNS_MAX);
        let width = columns as f64 * (BOX_WIDTH + GAP_X) - GAP_X;
        let mut before = vec![Vec::new(); places.len()];
        for &(from, to) in &stage.edges {
            before[to].push(from);
        }
        let mut y = MARGIN;
        for mut row in rows {
            // Place tasks below the mean of their dependencies, so that few edges cross.
            row.sort_by_cached_key(|&i| {
                let sum: f64 = before[i].iter().map(|&from: &usize| places[from].x).sum();
                (sum / before[i].len().max(1) as f64) as u64
            });
            for line in row.chunks(COLUMNS_MAX) {
                let line_width = line.len() as f64 * (BOX_WIDTH + GAP_X) - GAP_X;
                let mut x = MARGIN + (width - line_width) / 2.0;
                let mut line_height = 0f64;
                for &i in line {
                    (places[i].x, places[i].y) = (x, y);
                    line_height = line_height.max(places[i].height);
                    x += BOX_WIDTH + GAP_X;
                }
                y += line_height + GAP_Y;
            }
        }
        Self { places, width: width + 2.0 * MARGIN, height: y - GAP_Y + MARGIN }
    }
}

impl Position {
    /// Returns white for cheap boxes to orange for expensive ones; dark text is readable on both, and in grey print.
    pub fn fill(&self) -> String {
        let mix = |white: f64, orange: f64| (white + (orange - white) * self.weight).round() as u8;
        format!("#{:02x}{:02x}{:02x}", mix(250.0, 247.0), mix(250.0, 178.0), mix(247.0, 103.0))
    }
}
