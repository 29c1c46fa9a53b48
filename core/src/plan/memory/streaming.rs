//! Constants that do not fit: which of a section's stay on the device, and which every run copies there while the device
//! computes.
//!
//! A streamed constant is a value that a copy makes on a stream of its own, from host memory that the device reaches by
//! itself where there is such. Constants are copied in *stages*, in the order in which kernels read them. The copies of a
//! stage begin when the last reader of the stage *depth* before has ended: with a depth of 2 there are two buffers, of
//! which one is read and the other is filled. All of this is edges between launches, so that tasks, waits of streams and
//! the arena need nothing further.
//!
//! The cost model decides which constants stay. The copies of a run take as long wherever they are. The aim is that
//! they never wait for a buffer, and kernels never for them. So constants are streamed in proportion to the time of the
//! kernels before them. The first ones stay, because nothing hides their copies, and so do those that are large
//! compared with their kernels' work. The proportion is the least that fits into the budget. Depths are compared by the
//! resulting estimated time of the section.

use crate::device::rates::Link;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::launches::{Launch, Launched, Made, Planner, Root, Work};
use crate::plan::section::Section;
use crate::plan::steps::CopyKind;
use crate::tensor::Tensor;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Depths that are tried: double and triple buffering, and one buffer, which hides nothing and takes least.
const DEPTHS: [usize; 3] = [2, 3, 1];
/// Most times that a choice is made again, because the arena turned out to be larger than its buffers.
const ATTEMPTS_MAX: usize = 6;

/// A constant by the identity of its bytes, and the layout that a kernel packs it in.
type Key = ((usize, usize), Option<u64>);

/// Returns the section within a budget of bytes of the first device's memory. `launched` makes its launches, with the
/// host's memory among its memories if it is told so.
///
/// # Errors
/// [`ErrorKind::OutOfMemory`] if it does not fit, with the least budget that would do; else as
/// [`crate::plan::launches::plan`].
pub(in crate::plan) fn within<'a>(
    budget: u64,
    launched: impl Fn(bool) -> Result<Launched<'a>>,
) -> Result<Section> {
    let mut whole = launched(false)?;
    let Some(memory) = whole.planner.budgeted() else {
        return whole.assembled();
    };
    let layout = whole.planner.lay_out(&whole.wanted)?;
    let needed = whole.planner.needed(memory, layout.arena.memories[memory as usize].arena, &whole);
    if needed.total() <= budget {
        return whole.planner.assemble(layout);
    }
    let refused = |least: Needed, why: &str| {
        let text = format!(
            "{} bytes of memory are needed and the budget is {budget}: {why}; the least budget that would do is {} \
             bytes: {least}",
            needed.total(),
            least.total()
        );
        Error::new(ErrorKind::OutOfMemory, text).on_device(whole.device_name())
    };
    if let Some(why) = whole.planner.why_not_streamed() {
        return Err(refused(needed, why));
    }
    let mut best: Option<(f64, Choice)> = None;
    for depth in DEPTHS {
        if depth == 1 && best.is_some() {
            break;
        }
        if let Some((time_ns, choice)) = fitting(budget, depth, &launched)?
            && best.as_ref().is_none_or(|(least_ns, _)| time_ns < *least_ns)
        {
            best = Some((time_ns, choice));
        }
    }
    let Some((_, choice)) = best else {
        let (_, least) = Plan::of(&launched)?.everything(1).applied(&launched)?.measured()?;
        return Err(refused(least, "even with a single buffer its constants do not pass through it"));
    };
    choice.applied(&launched)?.0.assembled()
}

/// A choice for a depth that fits into the budget, and the nanoseconds that the section should take; None if there is
/// none.
fn fitting<'a>(
    budget: u64,
    depth: usize,
    launched: &impl Fn(bool) -> Result<Launched<'a>>,
) -> Result<Option<(f64, Choice)>> {
    let plan = Plan::of(launched)?;
    // Room left for constants: first as if values could never share the buffers' memory.
    let mut room = (budget as i128) - (plan.needed_streaming_nothing as i128) + (plan.bytes() as i128);
    for _ in 0..ATTEMPTS_MAX {
        let Some(choice) = plan.choose(depth, room) else {
            break;
        };
        let (_, found) = choice.clone().applied(launched)?.measured()?;
        let found = found.total();
        if found <= budget {
            return Ok(Some((plan.time_ns(&choice), choice)));
        }
        room -= i128::from(found - budget);
    }
    // If there is next to no room for constants that stay, all of them are streamed.
    let choice = plan.everything(depth);
    let (_, found) = choice.clone().applied(launched)?.measured()?;
    Ok((found.total() <= budget).then(|| (plan.time_ns(&choice), choice)))
}

/// Memory that a section takes, in bytes.
#[derive(Clone, Copy, Default)]
struct Needed {
    /// Constants that stay.
    constants: u64,
    /// The arena of one run, including the buffers of streamed constants.
    arena: u64,
    /// The largest workspace of a launch, which is in the arena.
    workspace: u64,
    /// Values that go in and out and are not in the arena.
    values: u64,
}

impl Needed {
    fn total(&self) -> u64 {
        self.constants + self.arena + self.values
    }
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { constants, arena, workspace, values } = self;
        write!(
            f,
            "{constants} of constants that stay, {arena} of the arena with workspaces of up to {workspace}"
        )?;
        match values {
            0 => Ok(()),
            values => write!(f, ", {values} of inputs and results"),
        }
    }
}

/// A constant that may be streamed.
struct Weight {
    /// Bytes on the device.
    bytes: usize,
    copy_ns: f64,
    /// Share of the kernels' time that comes before the first launch that reads it.
    before: f64,
}

/// A launch of one of the device's kernels.
struct Reader {
    /// Its position among the section's launches.
    at: u32,
    cost_ns: f64,
    /// The inputs that are constants, and which.
    reads: Vec<(usize, usize)>,
}

/// The inputs of a choice.
struct Plan {
    weights: Vec<Weight>,
    /// Launches of the device's kernels, in order.
    launches: Vec<Reader>,
    link: Link,
    /// Bytes of the device's memory if nothing is streamed.
    needed_streaming_nothing: u64,
}

/// The constants that are streamed, and how.
#[derive(Clone)]
struct Choice {
    depth: usize,
    stages: Vec<Stage>,
}

/// Copies that launches wait for together.
#[derive(Clone, Default)]
struct Stage {
    copies: Vec<Copied>,
    bytes: usize,
    /// The launches from whose first on it is this stage's turn.
    launches: Vec<u32>,
}

/// A copy and its readers: launches by position, with the input.
#[derive(Clone)]
struct Copied {
    weight: usize,
    readers: Vec<(u32, usize)>,
}

impl Plan {
    fn of<'a>(launched: &impl Fn(bool) -> Result<Launched<'a>>) -> Result<Self> {
        let mut with_host = launched(true)?;
        let (_, needed_streaming_nothing) = with_host.measure()?;
        let planner = &with_host.planner;
        let Some(memory) = planner.budgeted() else {
            return Err(Error::new(ErrorKind::Internal, "a section without the device that streams"));
        };
        let link = planner.rates.to_device;
        let fixed = planner.constants_of_other_work(memory);
        let (mut position, mut weights, mut launches) = (HashMap::new(), Vec::new(), Vec::new());
        let mut elapsed_ns = 0.0;
        for (at, launch) in planner.launches.iter().enumerate() {
            let Work::Kernel(_) = &launch.work else {
                continue;
            };
            if planner.lanes.get(launch.lane).memory != memory {
                continue;
            }
            let mut reads = Vec::new();
            for (input, tensor, key, bytes) in constants(launch) {
                if fixed.contains(&tensor.identity()) || bytes == 0 {
                    continue;
                }
                let weight = *position.entry(key).or_insert_with(|| {
                    weights.push(Weight { bytes, copy_ns: link.copy(bytes), before: elapsed_ns });
                    weights.len() - 1
                });
                reads.push((input, weight));
            }
            launches.push(Reader { at: at as u32, cost_ns: launch.cost.ns, reads });
            elapsed_ns += launch.cost.ns;
        }
        weights.iter_mut().for_each(|weight| weight.before /= elapsed_ns.max(1.0));
        let needed_streaming_nothing = needed_streaming_nothing.total();
        Ok(Self { weights, launches, link, needed_streaming_nothing })
    }

    fn bytes(&self) -> usize {
        self.weights.iter().map(|weight| weight.bytes).sum()
    }

    /// Everything is streamed.
    fn everything(&self, depth: usize) -> Choice {
        Choice { depth, stages: self.stages(depth, &vec![true; self.weights.len()]) }
    }

    /// Returns the least that must be streamed for constants and buffers to fit into `room` bytes; None if they do not.
    fn choose(&self, depth: usize, room: i128) -> Option<Choice> {
        let total_ns: f64 = self.weights.iter().map(|weight| weight.copy_ns).sum();
        let try_share = |share: f64| {
            let streamed = self.streamed(share * total_ns);
            let stages = self.stages(depth, &streamed);
            let stay = self.weights.iter().zip(&streamed).filter(|(_, streamed)| !**streamed);
            let stay: usize = stay.map(|(weight, _)| weight.bytes).sum();
            let fits = (stay + buffers(&stages, depth)) as i128 <= room;
            fits.then_some(Choice { depth, stages })
        };
        // More than 1 is for constants that the last kernels, or the largest ones, read.
        let (mut low, mut high) = (0.0, 64.0);
        let mut found = try_share(high)?;
        for _ in 0..24 {
            let middle = (low + high) / 2.0;
            match try_share(middle) {
                Some(choice) => (found, high) = (choice, middle),
                None => low = middle,
            }
        }
        Some(found)
    }

    /// Returns which constants are streamed, if copies may take so long for all the time of the kernels. A constant
    /// stays if its copy takes longer to begin than to do.
    fn streamed(&self, copies_ns: f64) -> Vec<bool> {
        let mut taken_ns = 0.0;
        let is_streamed = |weight: &Weight| {
            let is_small = weight.copy_ns < 2.0 * self.link.latency_ns;
            if is_small || taken_ns + weight.copy_ns > copies_ns * weight.before {
                return false;
            }
            taken_ns += weight.copy_ns;
            true
        };
        self.weights.iter().map(is_streamed).collect()
    }

    /// Returns the stages of constants, in the order of the launches that read them. A constant that an earlier living
    /// stage has copied is not copied again. A stage is worth at least the start-up time of its copies.
    fn stages(&self, depth: usize, streamed: &[bool]) -> Vec<Stage> {
        let mut stages: Vec<Stage> = Vec::new();
        // Where each constant was copied last.
        let mut last: HashMap<usize, (usize, usize)> = HashMap::new();
        let mut copy_ns = f64::INFINITY;
        for Reader { at, reads, .. } in &self.launches {
            for &(input, weight) in reads.iter().filter(|&&(_, weight)| streamed[weight]) {
                let is_there = |&(stage, _): &(usize, usize)| stage + depth > stages.len().saturating_sub(1);
                // A launch that begins a stage must not wait for the stage that it ends.
                let begins = stages.last().is_none_or(|stage| {
                    copy_ns >= 2.0 * self.link.latency_ns && !stage.launches.contains(at)
                });
                let known = last.get(&weight).copied();
                if let Some((stage, copy)) = known.filter(is_there)
                    && !(begins && stage + depth < stages.len() + 1)
                {
                    stages[stage].copies[copy].readers.push((*at, input));
                    continue;
                }
                if begins {
                    stages.push(Stage::default());
                    copy_ns = 0.0;
                }
                let n = stages.len() - 1;
                stages[n].launches.push(*at);
                stages[n].copies.push(Copied { weight, readers: vec![(*at, input)] });
                stages[n].bytes += self.weights[weight].bytes;
                last.insert(weight, (n, stages[n].copies.len() - 1));
                copy_ns += self.weights[weight].copy_ns - self.link.latency_ns;
            }
        }
        stages
    }

    /// Nanoseconds that the section should take: copies one after the other, kernels too, each copy behind the last reader
    /// of the buffer that it fills, each kernel behind the copies of its stage.
    fn time_ns(&self, choice: &Choice) -> f64 {
        let mut stages = choice.stages.iter().enumerate().peekable();
        let mut ends: HashMap<u32, f64> = HashMap::new();
        let (mut kernels_ns, mut copies_ns) = (0.0f64, 0.0f64);
        for launch in &self.launches {
            if let Some((s, stage)) = stages.next_if(|(_, stage)| stage.launches[0] == launch.at) {
                if let Some(before) = s.checked_sub(choice.depth) {
                    let readers = choice.stages[before].copies.iter().flat_map(|copied| &copied.readers);
                    let ended = readers.filter_map(|(at, _)| ends.get(at).copied());
                    copies_ns = ended.fold(copies_ns, f64::max);
                }
                copies_ns +=
                    stage.copies.iter().map(|copied| self.weights[copied.weight].copy_ns).sum::<f64>();
                kernels_ns = kernels_ns.max(copies_ns);
            }
            kernels_ns += launch.cost_ns;
            ends.insert(launch.at, kernels_ns);
        }
        kernels_ns
    }
}

/// Returns the most bytes of stages that are there at once.
fn buffers(stages: &[Stage], depth: usize) -> usize {
    let there = |stages: &[Stage]| stages.iter().map(|stage| stage.bytes).sum::<usize>();
    match stages.len() > depth {
        true => stages.windows(depth).map(there).max().unwrap_or(0),
        false => there(stages),
    }
}

/// Returns the constants that a kernel reads: input, content, identity and bytes on the device.
fn constants(launch: &Launch) -> impl Iterator<Item = (usize, &Tensor, Key, usize)> {
    let packs = match &launch.work {
        Work::Kernel(chosen) => chosen.kernel.packs(),
        _ => &[],
    };
    launch.inputs.iter().enumerate().filter_map(move |(i, operand)| {
        let Some((Root::Constant(tensor), size)) = operand else {
            return None;
        };
        let pack = packs.iter().find(|pack| pack.input_idx == i);
        let key = (tensor.identity(), pack.map(|pack| pack.layout_id));
        Some((i, tensor, key, pack.map_or(*size, |pack| pack.size)))
    })
}

impl Planner<'_> {
    /// Returns the memory that the budget is of: the first device's; None if the section does not use it.
    fn budgeted(&self) -> Option<u32> {
        self.lanes.iter().find(|lane| lane.site == 0).map(|lane| lane.memory)
    }

    /// Why nothing can be streamed, if so.
    fn why_not_streamed(&self) -> Option<&'static str> {
        let home = self.env.home_site();
        match () {
            () if self.env.reads_host_memory(0) => Some("the device works in the host's memory"),
            () if !self.env.shares_sections(0) => {
                Some("the device's memory takes no part in sections with copies")
            }
            () if home.is_none() => {
                Some("constants are streamed where the processor takes part in the session")
            }
            () if self.regions.len() > 1 => Some("constants of control flow are not streamed"),
            () => None,
        }
    }

    /// Constants in a memory that are read by something else than kernels.
    fn constants_of_other_work(&self, memory: u32) -> HashSet<(usize, usize)> {
        let others = self.launches.iter().filter(|launch| {
            self.lanes.get(launch.lane).memory == memory
                && !matches!(launch.work, Work::Kernel(_) | Work::Weight(..))
        });
        let constants = others.flat_map(constants);
        constants.map(|(_, tensor, ..)| tensor.identity()).collect()
    }

    /// Bytes of a memory that a run takes.
    fn needed(&self, memory: u32, arena: usize, of: &Launched<'_>) -> Needed {
        let mut known: HashSet<Key> = HashSet::new();
        let mut needed = Needed { arena: arena as u64, ..Needed::default() };
        for launch in &self.launches {
            let is_there = self.lanes.get(launch.lane).memory == memory;
            for (_, _, key, size) in
                constants(launch).filter(|_| is_there && !matches!(launch.work, Work::Weight(..)))
            {
                needed.constants += if known.insert(key) { size as u64 } else { 0 };
            }
            if is_there {
                let workspace: usize = launch.work.workspaces().iter().sum();
                needed.workspace = needed.workspace.max(workspace as u64);
            }
        }
        if !self.lanes.are_placed() && !self.env.reads_host_memory(0) {
            let values = self.inputs.iter().chain(of.wanted.iter().map(|(id, _)| id));
            let sizes = values.filter_map(|&id| Some(self.shaped(self.program, id).ok()?.size as u64));
            needed.values = sizes.sum();
        }
        needed
    }

    /// Makes copies of the streamed constants, and the edges that keep stages apart.
    fn stream(&mut self, choice: &Choice) {
        let memory = self.budgeted().unwrap_or(0);
        let lane = self.lanes.for_weights(memory);
        let device = self.env.site(0).0.name();
        let old = std::mem::take(&mut self.launches);
        let kernels = self.lanes.for_kernels(0);
        let mut first_of: HashMap<u32, usize> = HashMap::new();
        for (s, stage) in choice.stages.iter().enumerate() {
            first_of.insert(stage.launches[0], s);
        }
        // Launches as they were before each position, with the copies in front of them.
        let mut number: Vec<u32> = Vec::with_capacity(old.len() + 1);
        let mut replaced: HashMap<(u32, usize), (usize, usize)> = HashMap::new();
        let mut new: Vec<Launch> = Vec::with_capacity(old.len());
        let mut copies: Vec<(usize, Vec<(u32, usize)>)> = Vec::new();
        // The last launch of the device's kernels in the stage before, and in this one.
        let (mut stage_now, mut last_before, mut last_now) = (0u32, None::<u32>, None::<u32>);
        let first_made = self.made.len();
        let sources: Vec<Vec<Option<(Root, usize)>>> =
            old.iter().map(|launch| launch.inputs.clone()).collect();
        let works: Vec<Option<Arc<crate::plan::place::kernel::Chosen>>> = old
            .iter()
            .map(|launch| match &launch.work {
                Work::Kernel(chosen) => Some(Arc::clone(chosen)),
                _ => None,
            })
            .collect();
        let labels: Vec<String> = old.iter().map(|launch| launch.label.clone()).collect();
        for (at, mut launch) in old.into_iter().enumerate() {
            if let Some(&s) = first_of.get(&(at as u32)) {
                stage_now = s as u32 + 1;
                (last_before, last_now) = (last_now.or(last_before), None);
                for copied in &choice.stages[s].copies {
                    let (reader, input) = copied.readers[0];
                    let Some((root, dense)) = sources[reader as usize][input].clone() else {
                        continue;
                    };
                    let Some(chosen) = works[reader as usize].clone() else {
                        continue;
                    };
                    let pack = chosen.kernel.packs().iter().find(|pack| pack.input_idx == input);
                    let size = pack.map_or(dense, |pack| pack.size);
                    self.made.push(Made::new(size, new.len() as u32, memory));
                    let made = self.made.len() - 1;
                    for &reader in &copied.readers {
                        replaced.insert(reader, (made, size));
                    }
                    copies.push((s, copied.readers.clone()));
                    new.push(Launch {
                        label: format!("weights to {device} for {}", labels[reader as usize]),
                        name: Arc::from(""),
                        output: Arc::from(""),
                        lane,
                        region: 0,
                        work: Work::Weight(chosen, input),
                        inputs: vec![Some((root, dense))],
                        outputs: vec![Some(made)],
                        after: Vec::new(),
                        stage: stage_now,
                        cost: self.env.copy_cost(0, CopyKind::ToDevice, size),
                        signature: None,
                    });
                }
            }
            number.push(new.len() as u32);
            for (input, operand) in launch.inputs.iter_mut().enumerate() {
                if let Some(&(made, size)) = replaced.get(&(at as u32, input)) {
                    *operand = Some((Root::Made(made, 0), size));
                    self.made[made].users.push(new.len() as u32);
                }
            }
            launch.after.iter_mut().for_each(|before| *before = number[*before as usize]);
            if launch.lane == kernels {
                launch.stage = stage_now;
                launch.after.extend(last_before);
                last_now = Some(new.len() as u32);
            }
            new.push(launch);
        }
        number.push(new.len() as u32);
        let renumber = |launch: &mut u32| {
            if let Some(&new) = number.get(*launch as usize) {
                *launch = new;
            }
        };
        for made in &mut self.made[..first_made] {
            renumber(&mut made.maker);
            made.users.iter_mut().for_each(renumber);
            made.part_makers.iter_mut().for_each(renumber);
        }
        // A buffer is filled again when all its readers have read it.
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); choice.stages.len()];
        for (s, who) in &copies {
            readers[*s].extend(who.iter().map(|(at, _)| number[*at as usize]));
        }
        let mut previous = None;
        let weights = new.iter_mut().zip(0..).filter(|(launch, _)| matches!(launch.work, Work::Weight(..)));
        for (launch, at) in weights {
            launch.after.extend(previous.replace(at));
            if let Some(before) = (launch.stage as usize - 1).checked_sub(choice.depth) {
                launch.after.extend(&readers[before]);
            }
        }
        self.launches = new;
    }
}

impl Choice {
    /// Returns the launches with the streamed constants.
    fn applied<'a>(self, launched: &impl Fn(bool) -> Result<Launched<'a>>) -> Result<Streamed<'a>> {
        let mut with_host = launched(true)?;
        with_host.planner.stream(&self);
        Ok(Streamed(with_host))
    }
}

/// Launches with the copies of streamed constants.
struct Streamed<'a>(Launched<'a>);

impl<'a> Streamed<'a> {
    /// Returns them with the device memory that they take.
    fn measured(mut self) -> Result<(Launched<'a>, Needed)> {
        let (_, bytes) = self.0.measure()?;
        Ok((self.0, bytes))
    }
}

impl Launched<'_> {
    /// Returns the budgeted memory, and the launches' use of it.
    fn measure(&mut self) -> Result<(u32, Needed)> {
        let Some(memory) = self.planner.budgeted() else {
            return Ok((0, Needed::default()));
        };
        let layout = self.planner.lay_out(&self.wanted)?;
        let arena = layout.arena.memories[memory as usize].arena;
        Ok((memory, self.planner.needed(memory, arena, self)))
    }

    fn device_name(&self) -> &str {
        self.planner.env.site(0).0.name()
    }
}
