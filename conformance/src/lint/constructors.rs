//! Code that runs when the library is loaded, before anybody has asked what the processor can do: an instruction in it
//! that x86-64 does not promise ends the process where the processor has none.
//!
//! The code is read from where the loader enters it: `DT_INIT`, each entry of `DT_INIT_ARRAY`, and the functions that
//! choose an implementation (IFUNC). Direct jumps and calls are followed, and those through a slot of the global offset
//! table that holds a function of this library; what is called through registers and other memory is not, nor other
//! libraries.

use super::checks::CONSTRUCTORS_INSTRUCTIONS;
use super::image::{Image, Target};
use super::{Report, counted};
use iced_x86::{CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use object::elf;
use std::collections::{BTreeSet, HashSet, VecDeque};

/// Instructions that are read at most, of all constructors together: some tenths of a second.
const INSTRUCTIONS_MAX: usize = 1 << 19;

/// Functions of C and C++ that do not come back: behind a call of them is another function's code. Those of
/// libstdc++ that throw begin with a name each.
const NOT_RETURNING: &[&str] = &[
    "abort",
    "exit",
    "_exit",
    "_Exit",
    "__stack_chk_fail",
    "__assert_fail",
    "__cxa_throw",
    "__cxa_rethrow",
    "__cxa_bad_cast",
    "__cxa_throw_bad_array_new_length",
    "__cxa_call_terminate",
    "_Unwind_Resume",
    "_ZSt9terminatev",
];

/// Where the loader enters the library.
struct Entry {
    address: u64,
    title: String,
}

/// Looks at what runs when the library is loaded.
///
/// # Errors
/// Words for a library that is damaged.
pub(super) fn look(image: &Image<'_>, report: &mut Report) -> Result<(), String> {
    let targets = image.targets()?;
    let functions = image.functions();
    let mut walk =
        Walk { image, targets: &targets, functions: &functions, seen: HashSet::new(), is_cut: false };
    let mut n_unread = 0;
    for entry in entries(image, &targets)? {
        n_unread += usize::from(image.code(entry.address).is_none());
        let found = walk.beyond_baseline(entry.address);
        let Some(first) = found.first() else {
            continue;
        };
        let features: BTreeSet<String> = found.iter().map(|beyond| beyond.feature.clone()).collect();
        let features = features.into_iter().collect::<Vec<_>>().join(", ");
        let more = match found.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more ({features})"),
        };
        report.find(
            &CONSTRUCTORS_INSTRUCTIONS,
            format!(
                "{} ({}) reaches `{}` ({}) at {:#x} ({}){more}",
                entry.title,
                walk.function(entry.address),
                first.mnemonic,
                first.feature,
                first.address,
                walk.function(first.address),
            ),
        );
    }
    if walk.is_cut {
        report
            .not_checked
            .push(format!("code that constructors reach beyond the first {INSTRUCTIONS_MAX} instructions"));
    }
    if n_unread > 0 {
        report
            .not_checked
            .push(format!("{}, whose code is not in this file", counted(n_unread, "constructor")));
    }
    Ok(())
}

/// Returns the loader's entries into the library, in its order.
fn entries(image: &Image<'_>, targets: &[(u64, Target<'_>)]) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let resolvers = targets.iter().filter_map(|(_, target)| match target {
        Target::Resolved(address) => Some(*address),
        _ => None,
    });
    let chosen =
        image.exports().filter(|symbol| symbol.kind == elf::STT_GNU_IFUNC).map(|symbol| symbol.address);
    let resolvers: BTreeSet<u64> = resolvers.chain(chosen).collect();
    entries.extend(
        resolvers.into_iter().map(|address| Entry { address, title: "an IFUNC resolver".to_owned() }),
    );
    if let Some(address) = image.value(elf::DT_INIT) {
        entries.push(Entry { address, title: "DT_INIT".to_owned() });
    }
    for (i, (slot, content)) in image.init_array()?.into_iter().enumerate() {
        let address = match target_of(targets, slot) {
            Some(Target::Here(address)) => Some(address),
            Some(_) => None,
            // Relocations that are packed (DT_RELR) leave the address in the slot.
            None => Some(content).filter(|address| *address != 0),
        };
        entries.extend(address.map(|address| Entry { address, title: format!("DT_INIT_ARRAY[{i}]") }));
    }
    Ok(entries)
}

fn target_of<'data>(targets: &[(u64, Target<'data>)], slot: u64) -> Option<Target<'data>> {
    let at = targets.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
    Some(targets[at].1)
}

/// An instruction that x86-64 does not promise.
struct Beyond {
    address: u64,
    mnemonic: String,
    feature: String,
}

/// Reads code, each instruction once, whichever constructor comes to it first.
struct Walk<'a, 'data> {
    image: &'a Image<'data>,
    targets: &'a [(u64, Target<'data>)],
    functions: &'a [(u64, &'data str)],
    seen: HashSet<u64>,
    is_cut: bool,
}

impl Walk<'_, '_> {
    /// Instructions beyond the baseline that are reached from an address, the nearest first.
    fn beyond_baseline(&mut self, entry: u64) -> Vec<Beyond> {
        let (mut found, mut next) = (Vec::new(), VecDeque::from([entry]));
        while let Some(start) = next.pop_front() {
            let Some(bytes) = self.image.code(start) else {
                continue;
            };
            let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
            while decoder.can_decode() {
                let address = decoder.ip();
                // A function that is fallen into stands behind a call that does not return.
                if (address != start && self.begins_function(address)) || self.seen.contains(&address) {
                    break;
                }
                if self.seen.len() == INSTRUCTIONS_MAX {
                    self.is_cut = true;
                    return found;
                }
                self.seen.insert(address);
                let instruction = decoder.decode();
                if let Some(feature) = beyond(&instruction) {
                    let mnemonic = format!("{:?}", instruction.mnemonic()).to_lowercase();
                    found.push(Beyond { address, mnemonic, feature: format!("{feature:?}") });
                }
                let target = self.follow(&instruction);
                let returns = match target {
                    Some(Target::Wanted(name)) => returns(name),
                    Some(Target::Here(address)) => self.stub(address).is_none_or(returns),
                    _ => true,
                };
                if let Some(Target::Here(address)) = target {
                    next.push_back(address);
                }
                match instruction.flow_control() {
                    FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Return
                    | FlowControl::Interrupt
                    | FlowControl::Exception => break,
                    FlowControl::Call | FlowControl::IndirectCall if !returns => break,
                    _ => {}
                }
            }
        }
        found
    }

    /// Returns the target of an instruction's jump or call, as far as that stands in the file.
    fn follow(&self, instruction: &Instruction) -> Option<Target<'_>> {
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch
            | FlowControl::ConditionalBranch
            | FlowControl::Call
            | FlowControl::XbeginXabortXend => {
                // `syscall` is a call too, and has no target.
                Some(instruction.near_branch_target()).filter(|target| *target != 0).map(Target::Here)
            }
            FlowControl::IndirectBranch | FlowControl::IndirectCall
                if instruction.is_ip_rel_memory_operand() =>
            {
                target_of(self.targets, instruction.ip_rel_memory_address())
            }
            _ => None,
        }
    }

    /// Returns the function of another library that a stub of the procedure linkage table jumps to.
    fn stub(&self, address: u64) -> Option<&str> {
        let mut decoder = Decoder::with_ip(64, self.image.code(address)?, address, DecoderOptions::NONE);
        let mut instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Endbr64 {
            instruction = decoder.decode();
        }
        if instruction.flow_control() != FlowControl::IndirectBranch {
            return None;
        }
        match self.follow(&instruction) {
            Some(Target::Wanted(name)) => Some(name),
            _ => None,
        }
    }

    fn begins_function(&self, address: u64) -> bool {
        self.functions.binary_search_by_key(&address, |(address, _)| *address).is_ok()
    }

    /// Returns the function that an address is in, as far as names are known.
    fn function(&self, address: u64) -> String {
        let at = self.functions.partition_point(|(begin, _)| *begin <= address);
        match at.checked_sub(1).map(|at| self.functions[at]) {
            Some((begin, name)) if begin == address => name.to_owned(),
            Some((begin, name)) => format!("{name}+{:#x}", address - begin),
            None => "an unnamed function".to_owned(),
        }
    }
}

fn returns(name: &str) -> bool {
    !(NOT_RETURNING.contains(&name) || (name.starts_with("_ZSt") && name.contains("__throw_")))
}

/// Returns a feature that an instruction needs and x86-64 does not promise.
fn beyond(instruction: &Instruction) -> Option<CpuidFeature> {
    let is_promised = |feature: &CpuidFeature| {
        matches!(
            *feature,
            CpuidFeature::INTEL8086
                | CpuidFeature::INTEL186
                | CpuidFeature::INTEL286
                | CpuidFeature::INTEL386
                | CpuidFeature::INTEL486
                | CpuidFeature::X64
                | CpuidFeature::CPUID
                | CpuidFeature::CMOV
                | CpuidFeature::CX8
                | CpuidFeature::FPU
                | CpuidFeature::FPU287
                | CpuidFeature::FPU387
                | CpuidFeature::FXSR
                | CpuidFeature::CLFSH
                | CpuidFeature::MMX
                | CpuidFeature::MULTIBYTENOP
                | CpuidFeature::MSR
                | CpuidFeature::TSC
                | CpuidFeature::RDPMC
                | CpuidFeature::PAUSE
                | CpuidFeature::SSE
                | CpuidFeature::SSE2
                | CpuidFeature::SYSCALL
                | CpuidFeature::SEP
        )
    };
    // Instructions that older processors take for one that does nothing, or for another that compilers mean as well
    // (`tzcnt` is `bsf` with a prefix). `xgetbv` reads which registers the system keeps: code that uses it has asked
    // the processor before, as the constructor of every compiler's runtime does.
    let is_harmless = matches!(
        instruction.mnemonic(),
        Mnemonic::Endbr64
            | Mnemonic::Endbr32
            | Mnemonic::Rdsspd
            | Mnemonic::Rdsspq
            | Mnemonic::Prefetchw
            | Mnemonic::Tzcnt
            | Mnemonic::Xgetbv
            | Mnemonic::INVALID
    );
    if is_harmless {
        return None;
    }
    instruction.cpuid_features().iter().copied().find(|feature| !is_promised(feature))
}
