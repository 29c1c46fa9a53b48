//! Several elementwise ops in one step: devbay's FusedElementwise.

use super::cost;
use super::elementwise::{Map, class_type, prepare_map};
use crate::formulas::{Class, Formula, Gives, find};
use crate::step::Param;
use crate::target::Target;
use devbay_plugin_api::abi::DEVBAY_VARIADIC;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[Kernel::new("FusedElementwise", 1, prepare)
    .domain("devbay")
    .types(&[TypeVar::of(&[F32])])
    .operands(&[0], &[0])
    .inputs(1, DEVBAY_VARIADIC)
    .in_place(&[0])
    .cost(|request| {
        let steps = fused_steps(request)?;
        let flops = steps.iter().map(|step| formula(step.op).map(|formula| formula.flops));
        cost::per_output(request, flops.sum::<Result<u64>>()?)
    })
    .doc("elementwise ops one after the other, without memory between them")];

/// The formula of an op that gives what it takes.
fn formula(op: &str) -> Result<&'static Formula> {
    let found = find(op).filter(|formula| formula.gives == Gives::Same && formula.n_operands <= 2);
    found.ok_or_else(|| Error::unsupported(format!("{op} among fused ops")))
}

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let ty = class_type(Class::Float);
    let (mut functions, mut params, mut code) = (Vec::new(), Vec::new(), String::new());
    let steps = fused_steps(request)?;
    for (i, step) in steps.iter().enumerate() {
        let formula = formula(step.op)?;
        functions.extend(formula.functions(Class::Float));
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
            (0..formula.attrs.len()).map(|k| number(format!("k{i}_{k}"), step.params[k])).collect();
        let text = formula.write(Class::Float, ty, &operands, &attrs);
        code.push_str(&format!("let r{i}: {ty} = {text};\n"));
    }
    functions.sort_unstable();
    functions.dedup();
    code.push_str(&format!("let r = r{};\n", steps.len() - 1));
    let inputs: Vec<usize> = (0..request.inputs.len()).collect();
    prepare_map(request, Map { name: "FusedElementwise", inputs: &inputs, functions, params, code })
}
