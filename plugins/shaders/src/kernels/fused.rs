//! Several elementwise ops in one step: devbay's FusedElementwise.

use super::cost;
use super::elementwise::{Map, prepare_map};
use crate::formulas::{Class, write};
use crate::step::Param;
use crate::target::Target;
use devbay_ops::descriptor_of;
use devbay_ops::formula::{self, Formula};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[descriptor_of("devbay", "FusedElementwise", 1, prepare)
    .types(&[TypeVar::of(&[F32])])
    .in_place(&[0])
    .cost(|request| {
        let steps = fused_steps(request)?;
        let flops = steps.iter().map(|step| formula(step.op).map(|formula| formula.form.flops));
        cost::per_output(request, flops.sum::<Result<u64>>()?)
    })
    .doc("elementwise ops one after the other, without memory between them")];

/// The formula of an op that gives what it takes.
fn formula(op: &str) -> Result<&'static Formula> {
    let found = formula::find(op).filter(|formula| !formula.gives_truth());
    found.ok_or_else(|| Error::unsupported(format!("{op} among fused ops")))
}

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let ty = Class::Float.name();
    let (mut functions, mut params, mut code) = (Vec::new(), Vec::new(), String::new());
    let steps = fused_steps(request)?;
    for (i, step) in steps.iter().enumerate() {
        let formula = formula(step.op)?;
        // Numbers are parameters, so that groups of the same ops share a text.
        let mut number = |name: String, value: f32| {
            params.push((name.clone(), Param::F32(value)));
            format!("p.{name}")
        };
        let mut operands = Vec::new();
        for (k, operand) in step.operands.iter().take(formula.n_operands).enumerate() {
            operands.push(match *operand {
                FusedOperand::Input(input) => format!("x{input}"),
                FusedOperand::Step(step) => format!("r{step}"),
                FusedOperand::Constant(value) => number(format!("c{i}_{k}"), value),
            });
        }
        let attrs: Vec<String> =
            (0..formula.params.len()).map(|k| number(format!("k{i}_{k}"), step.params[k])).collect();
        let written = write(formula, Class::Float, &operands, &attrs);
        functions.extend(written.functions);
        code.push_str(&format!("let r{i}: {ty} = {};\n", written.text));
    }
    functions.sort_unstable();
    functions.dedup();
    code.push_str(&format!("let r = r{};\n", steps.len() - 1));
    let inputs: Vec<usize> = (0..request.inputs.len()).collect();
    prepare_map(request, Map { name: "FusedElementwise", inputs: &inputs, functions, params, code })
}
