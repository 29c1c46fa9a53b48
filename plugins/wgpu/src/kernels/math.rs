//! Stand-ins.
/// WGSL of functions.
pub fn functions(names: &[&str]) -> String {
    let one = |name: &&str| {
        let plain = name.trim_end_matches('_');
        let call = match plain { "sigmoid" => "1.0 / (1.0 + exp(-x))".to_owned(), plain => format!("{plain}(x)") };
        format!("fn {name}(x: f32) -> f32 {{ return {call}; }}\n")
    };
    names.iter().map(one).collect()
}
