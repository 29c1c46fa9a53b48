//! `cargo xtask planning`: measures the time to read and plan graphs of a thousand to a million nodes, and draws it.
//!
//! Five shapes, as in the benchmark `executor`, of elementwise ops on one number. Each size runs in a separate process, with
//! all passes, which fuse most of the nodes, and with none, so that each node is planned. Both axes of the picture are
//! logarithmic: times linear in the number of nodes are parallel to the grey lines.

use crate::abi::repository_root;
use crate::random::Random;
use crate::{python, target_folder};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// The command to measure; without it `devbay` is built in release
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Nodes of the largest graphs
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    nodes_max: usize,
    /// Number of times to measure each; the minimum counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: usize,
    /// Draw a picture
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
}

const SHAPES: [&str; 5] = ["chain", "wide", "tree", "layers", "random"];
const COLOURS: [&str; 5] = ["#4878a8", "#d08040", "#509050", "#a04060", "#806090"];
/// Options of the command, and their titles.
const WAYS: [(&str, &[&str]); 2] = [("all passes", &[]), ("no passes", &["--no-pass", "all"])];

/// Seconds of one graph.
struct Measured {
    nodes: usize,
    import: f64,
    prepare: f64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => {
            let mut cargo = Command::new(env!("CARGO"));
            let cargo = cargo.current_dir(repository_root());
            python::run(cargo.args(["build", "--release", "--bin", "devbay"]))?;
            target_folder()?.join("release/devbay")
        }
    };
    let folder = target_folder()?.join("planning");
    std::fs::create_dir_all(&folder)?;
    let sizes =
        || std::iter::successors(Some(1000), |n| Some(n * 10)).take_while(|&n| n <= arguments.nodes_max);
    println!(
        "{:<7} {:>9} {:<11} {:>9} {:>9} {:>12}",
        "SHAPE", "NODES", "WITH", "IMPORT", "PREPARE", "A NODE"
    );
    let mut lines = Vec::new();
    for (way, options) in WAYS {
        for shape in SHAPES {
            let mut line = Vec::new();
            for n in sizes() {
                let model = folder.join(format!("{shape}-{n}.txt"));
                write_model(&model, shape, n)?;
                let mut best: Option<Measured> = None;
                for _ in 0..arguments.runs.max(1) {
                    let found = measure(&program, &model, options, n)?;
                    let is_better =
                        |best: &Measured| found.import + found.prepare < best.import + best.prepare;
                    if best.as_ref().is_none_or(is_better) {
                        best = Some(found);
                    }
                }
                std::fs::remove_file(&model)?;
                let Some(found) = best else { continue };
                let sum = found.import + found.prepare;
                println!(
                    "{shape:<7} {n:>9} {way:<11} {:>7.3} s {:>7.3} s {:>9.2} us",
                    found.import,
                    found.prepare,
                    sum * 1e6 / n as f64
                );
                line.push(found);
            }
            lines.push((way, shape, line));
        }
    }
    if let Some(path) = &arguments.picture {
        std::fs::write(path, picture(&lines)?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn measure(program: &Path, model: &Path, options: &[&str], nodes: usize) -> Result<Measured> {
    let mut command = Command::new(program);
    command.arg("run").arg(model).args(["--random", "--json", "--device", "cpu"]).args(options);
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", model.display());
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let seconds = |name: &str| -> Result<f64> {
        let ns = json["times_ns"][name].as_f64().with_context(|| format!("no time called {name}"))?;
        Ok(ns / 1e9)
    };
    Ok(Measured { nodes, import: seconds("import")?, prepare: seconds("prepare")? })
}

/// Writes a graph as a program in text form: nodes with at most one predecessor scale it by a unique number, other nodes add
/// up their predecessors.
fn write_model(path: &Path, shape: &str, n: usize) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    writeln!(out, "devbay-program 1\n\nprogram \"{shape}\"(%x: f32[1]) {{")?;
    let mut made = 0usize;
    each_node(shape, n, &mut |predecessors| {
        let operands: Vec<String> = predecessors.iter().map(|node| format!("%n{node}")).collect();
        match operands.as_slice() {
            [] => writeln!(out, "  %n{made}: f32[1] = LeakyRelu@16(%x) {{alpha = {}}}", slope(made))?,
            [a] => writeln!(out, "  %n{made}: f32[1] = LeakyRelu@16({a}) {{alpha = {}}}", slope(made))?,
            [a, b] => writeln!(out, "  %n{made}: f32[1] = Add@14({a}, {b})")?,
            all => writeln!(out, "  %n{made}: f32[1] = Sum@13({})", all.join(", "))?,
        }
        made += 1;
        Ok(())
    })?;
    writeln!(out, "  return %n{}\n}}", made - 1)?;
    Ok(out.flush()?)
}

/// Returns a slope that no other node has.
fn slope(node: usize) -> String {
    format!("{:?}", f32::from_bits(0x3e80_0000 + node as u32))
}

/// Calls `node` with the predecessors of each node of a graph of about `n`.
fn each_node(shape: &str, n: usize, node: &mut dyn FnMut(&[usize]) -> Result<()>) -> Result<()> {
    let mut random = Random(42);
    match shape {
        "chain" => (0..n).try_for_each(|i| node(i.checked_sub(1).as_slice())),
        "wide" => {
            node(&[])?;
            (0..n).try_for_each(|_| node(&[0]))?;
            sinks((1..=n).collect(), n + 1, node)
        }
        "tree" => {
            let leaves = 1usize << ((n / 2) as f64).log2().round() as u32;
            (0..leaves).try_for_each(|_| node(&[]))?;
            (0..leaves - 1).try_for_each(|pair| node(&[2 * pair, 2 * pair + 1]))
        }
        "layers" => {
            const LAYERS: usize = 100;
            let width = n / LAYERS;
            (0..width).try_for_each(|_| node(&[]))?;
            for layer in 1..LAYERS {
                for _ in 0..width {
                    let a = random.below(width);
                    let b = (a + 1 + random.below(width - 1)) % width;
                    node(&[(layer - 1) * width + a, (layer - 1) * width + b])?;
                }
            }
            sinks(((LAYERS - 1) * width..LAYERS * width).collect(), LAYERS * width, node)
        }
        "random" => {
            let mut followed = vec![false; n - 1];
            node(&[])?;
            for i in 1..n - 1 {
                let mut before: Vec<usize> = (0..=random.below(5)).map(|_| random.below(i)).collect();
                before.sort_unstable();
                before.dedup();
                before.iter().for_each(|&node| followed[node] = true);
                node(&before)?;
            }
            sinks((0..n - 1).filter(|&i| !followed[i]).collect(), n - 1, node)
        }
        _ => bail!("there is no shape `{shape}`"),
    }
}

/// Maximum number of operands of a sum.
const OPERANDS: usize = 1000;

/// Adds one node after all of these, through sums of limited size; `made` nodes exist already.
fn sinks(mut nodes: Vec<usize>, mut made: usize, node: &mut dyn FnMut(&[usize]) -> Result<()>) -> Result<()> {
    while nodes.len() > 1 {
        let mut sums = Vec::new();
        for operands in nodes.chunks(OPERANDS) {
            node(operands)?;
            sums.push(made);
            made += 1;
        }
        nodes = sums;
    }
    Ok(())
}

// --- the picture ----------------------------------------------------------------------------------

/// Pixels of one panel, and its margins.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 340.0;
const MARGIN: f64 = 60.0;
/// Decades of both axes: nodes from 10^3, seconds from 10^-3.
const FIRST: (f64, f64) = (3.0, -3.0);
const DECADES: (f64, f64) = (3.0, 5.0);

fn picture(lines: &[(&str, &str, Vec<Measured>)]) -> Result<String> {
    let mut svg = String::new();
    let (width, height) = (2.0 * (WIDTH + MARGIN) + MARGIN, HEIGHT + 2.0 * MARGIN);
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    )?;
    for (i, (way, _)) in WAYS.iter().enumerate() {
        let left = MARGIN + i as f64 * (WIDTH + MARGIN);
        let x = |nodes: f64| left + (nodes.log10() - FIRST.0) / DECADES.0 * WIDTH;
        let y = |seconds: f64| MARGIN + HEIGHT - (seconds.log10() - FIRST.1) / DECADES.1 * HEIGHT;
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{way}</text>",
            left + WIDTH / 2.0,
            MARGIN - 20.0
        )?;
        for (decade, name) in (0..).zip(["1,000", "10,000", "100,000", "1,000,000"]) {
            let at = x(10f64.powi(3 + decade));
            writeln!(
                svg,
                "<path d=\"M{at:.1} {MARGIN}V{}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
                MARGIN + HEIGHT,
                MARGIN + HEIGHT + 18.0
            )?;
        }
        for (decade, name) in (0..).zip(["1 ms", "10 ms", "0.1 s", "1 s", "10 s", "100 s"]) {
            let at = y(10f64.powi(decade - 3));
            writeln!(
                svg,
                "<path d=\"M{left} {at:.1}H{}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                left + WIDTH,
                left - 4.0,
                at + 4.0
            )?;
        }
        // One and ten microseconds per node.
        for us in [1e-6, 1e-5] {
            writeln!(
                svg,
                "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#aaa\" stroke-dasharray=\"4 3\"/>",
                x(1e3),
                y(us * 1e3),
                x(1e6),
                y(us * 1e6)
            )?;
        }
        let own = lines.iter().filter(|(of, _, line)| of == way && !line.is_empty());
        for (at, (_, shape, line)) in own.enumerate() {
            let points: Vec<String> = line
                .iter()
                .map(|found| {
                    let seconds = (found.import + found.prepare).max(1e-3);
                    format!("{:.1},{:.1}", x(found.nodes as f64), y(seconds))
                })
                .collect();
            let (colour, key) = (COLOURS[at % COLOURS.len()], MARGIN + 16.0 * (at as f64 + 1.0));
            writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <text x=\"{}\" y=\"{key}\" fill=\"{colour}\">{shape}</text>",
                points.join(" "),
                left + 12.0
            )?;
        }
    }
    writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">nodes; seconds to read and plan the graph; dashed: 1 us and \
         10 us a node</text>\n</svg>",
        width / 2.0,
        height - 14.0
    )?;
    Ok(svg)
}
