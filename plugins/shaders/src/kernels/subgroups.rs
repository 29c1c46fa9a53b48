//! Threads that hand values to each other without memory, where a device has subgroups.

/// Code by which an entry knows its threads.
pub struct Inputs {
    /// Arguments of the entry.
    pub arguments: String,
    /// Statements that it begins with.
    pub begin: String,
}

/// Numbers the threads of a workgroup by `thread`. The device decides which of them share a subgroup: where shuffles
/// ask for it, neighbours by this number are neighbours in their subgroup.
pub fn inputs(thread: &str, is_shuffled: bool) -> Inputs {
    match is_shuffled {
        true => Inputs {
            arguments: "@builtin(subgroup_id) subgroup: u32, @builtin(subgroup_size) subgroup_size: u32, \
                        @builtin(subgroup_invocation_id) in_subgroup: u32"
                .to_owned(),
            begin: format!("let {thread} = subgroup * subgroup_size + in_subgroup;\n"),
        },
        false => Inputs {
            arguments: format!("@builtin(local_invocation_index) {thread}: u32"),
            begin: String::new(),
        },
    }
}

/// Folds a variable over `n` neighbours, a power of two: all of them have the same bits then. `fold` is a commutative
/// expression over `a` and `b`; all threads of a subgroup have to run it.
pub fn shuffled(n: u32, variable: &str, fold: &str) -> String {
    let step = |bit: u32| {
        format!(
            "{{\nlet a = {variable};\nlet b = subgroupShuffleXor(a, {}u);\n{variable} = {fold};\n}}\n",
            1u32 << bit
        )
    };
    (0..n.ilog2()).map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_fold_by_halves() {
        assert_eq!(shuffled(1, "v", "a + b"), "");
        let text = shuffled(8, "v", "a + b");
        let steps: Vec<_> = ["1u", "2u", "4u"].map(|step| format!("subgroupShuffleXor(a, {step})")).into();
        assert_eq!(text.matches("subgroupShuffleXor").count(), steps.len());
        assert!(steps.iter().all(|step| text.contains(step)), "{text}");
    }
}
