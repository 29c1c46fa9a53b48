//! TopK: the largest or smallest elements along an axis, with their positions.
//!
//! Of equal elements the one that comes first is taken first, so that the result does not depend on how it is
//! found. It is sorted also where the node leaves the order open.
//!
//! Where few of many are wanted, a bound comes first: the elements are dealt out in turn to some lanes, and the last of the `k`
//! smallest among the lanes' smallest has at least `k` elements that are not above it, and rarely many more. Those alone are sorted.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::cost;
use crate::kernels::geometry::extents::{around, axis, element_size, expect_output, extents, host_int};
use crate::kernels::geometry::strided::copy_run;
use crate::kernels::numbers::order::{KeyFn, Ordered, key_of};
use crate::kernels::numbers::real::stored;
use crate::kernels::sorting::lists::{Natural, select, sort};
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Not;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("TopK", 11, top_k)
    .types(&[TypeVar::of(NUMBERS), TypeVar::of(&[I64])])
    .operands(&[0, 1], &[0, 1])
    .cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 8)
}

/// The key of an element.
trait Key: Copy + Ord + Not<Output = Self> + 'static {
    /// Above which there is none.
    const HIGHEST: Self;
    /// An element while it is sorted: its key, the smallest first, and its position.
    type Entry: Copy + Ord;

    fn entry(self, position: usize) -> Self::Entry;
    fn position(entry: Self::Entry) -> usize;
    fn of(entry: Self::Entry) -> Self;
}

macro_rules! keys {
    ($($key:ty, $entry:ty;)*) => {$(
        impl Key for $key {
            const HIGHEST: Self = Self::MAX;
            type Entry = $entry;

            #[inline(always)]
            fn entry(self, position: usize) -> $entry {
                <$entry>::from(self) << Self::BITS | position as $entry
            }

            #[inline(always)]
            fn position(entry: $entry) -> usize {
                entry as Self as usize
            }

            #[inline(always)]
            fn of(entry: $entry) -> Self {
                (entry >> Self::BITS) as Self
            }
        }
    )*};
}
// Positions have as many bits as keys.
keys! {
    u32, u64;
    u64, u128;
}

/// Elements between two looks whether the run goes on.
const PIECE: usize = 1 << 16;

/// Elements that are compared with the bound at once.
const BLOCK: usize = 32;

/// Writes the keys of elements that lie a number of elements apart, all bits turned over for the largest first.
type ReadFn = unsafe fn(*const u8, usize, bool, *mut u8, usize);

dispatch! {
    fn read<T: Ordered<Key: Key>>(x: *const u8, stride: usize, largest: bool, keys: *mut u8, n: usize) = read_body
}

/// # Safety
/// There are `n` elements, and room for as many keys, aligned.
#[inline(always)]
unsafe fn read_body<A: Arith, T: Ordered<Key: Key>>(
    x: *const u8,
    stride: usize,
    largest: bool,
    keys: *mut u8,
    n: usize,
) {
    let (x, keys) = (x.cast::<T>(), keys.cast::<T::Key>());
    let each = |stride: usize| {
        for i in 0..n {
            // SAFETY: `i` is below `n` (# Safety).
            let key = unsafe { x.add(i * stride).read() }.key();
            // SAFETY: `i` is below `n` (# Safety).
            unsafe { keys.add(i).write(if largest { !key } else { key }) };
        }
    };
    // Elements side by side are read as vectors.
    if stride == 1 { each(1) } else { each(stride) }
}

dispatch! {
    /// Deals keys out to the lanes in turn, of which each keeps the smallest.
    fn deal<K: Key>(keys: &[K], lanes: &mut [K]) = deal_body
}

#[inline(always)]
unsafe fn deal_body<A: Arith, K: Key>(keys: &[K], lanes: &mut [K]) {
    for row in keys.chunks(lanes.len()) {
        for (lane, &key) in lanes.iter_mut().zip(row) {
            *lane = if key < *lane { key } else { *lane };
        }
    }
}

/// Elements that are not above the bound, as far as they are found.
struct Found<'a, K: Key> {
    entries: &'a mut [K::Entry],
    n: usize,
    /// Those among them that equal the bound, of which the first `k` are enough.
    n_equal: usize,
}

dispatch! {
    /// Looks through keys whose first has the position `first`. There are as many entries as keys up to here.
    fn collect<K: Key>(keys: &[K], first: usize, bound: K, k: usize, found: &mut Found<'_, K>) = collect_body
}

#[inline(always)]
unsafe fn collect_body<A: Arith, K: Key>(
    keys: &[K],
    first: usize,
    bound: K,
    k: usize,
    found: &mut Found<'_, K>,
) {
    for (block, keys) in keys.chunks(BLOCK).enumerate() {
        let mut any = false;
        for &key in keys {
            any |= key <= bound;
        }
        if !any {
            continue;
        }
        for (i, &key) in keys.iter().enumerate() {
            // Written first and counted if it is to stay, because a branch would be guessed wrong.
            found.entries[found.n] = key.entry(first + block * BLOCK + i);
            let equal = key == bound;
            found.n += usize::from(key < bound || equal && found.n_equal < k);
            found.n_equal += usize::from(equal);
        }
    }
}

/// Elements up to which so few are inserted one by one.
const FEW: usize = 16;
/// Elements of an axis of which few are wanted, up to which each is looked at.
const SHORT: usize = 256;

/// Brings the first `k` of some keys to the front of the entries, in their order.
#[inline(always)]
fn insert<K: Key>(keys: &[K], k: usize, entries: &mut [K::Entry]) {
    let entries = &mut entries[..k];
    for (i, &key) in keys.iter().enumerate() {
        let mut at = i;
        if i >= k {
            // Of equal ones the first stay.
            if key >= K::of(entries[k - 1]) {
                continue;
            }
            at = k - 1;
        }
        let entry = key.entry(i);
        while at > 0 && entries[at - 1] > entry {
            entries[at] = entries[at - 1];
            at -= 1;
        }
        entries[at] = entry;
    }
}

/// Along the middle one of three dimensions.
struct TopK {
    host: Host,
    around: [usize; 3],
    k: usize,
    size: usize,
    largest: bool,
    isa: Isa,
    read: Read,
    /// Lanes that find a bound; 0 if all elements are sorted.
    n_lanes: usize,
    /// Bytes of the workspace for a slot: entries, keys and lanes.
    slot_bytes: usize,
}

enum Read {
    /// Keys of 32 bits, and positions too.
    Narrow(ReadFn),
    Wide(ReadFn),
    /// Keys of fewer than 64 bits, with positions that need more than 32.
    Each(KeyFn),
}

fn top_k(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let axis = axis(request.attrs.int("axis", -1)?, from.len())?;
    let k = host_int(request, 1, 1)?;
    let Some(k) = usize::try_from(k).ok().filter(|&k| k <= from[axis]) else {
        return Err(Error::invalid(format!("k is {k}, expected 0 to {}", from[axis])));
    };
    let mut to = from.clone();
    to[axis] = k;
    for i in (0..2).filter(|&i| request.output(i).is_some()) {
        expect_output(request, i, &to)?;
    }
    let (dtype, isa) = (input.dtype(), request.device.isa);
    let n = from[axis];
    let (read, key_size) = match element_size(dtype) {
        8 => (Read::Wide(stored!(dtype, reader(isa))?), size_of::<u64>()),
        _ if u32::try_from(n).is_err() => (Read::Each(key_of(dtype)?), size_of::<u64>()),
        _ => (Read::Narrow(stored!(dtype, reader(isa))?), size_of::<u32>()),
    };
    // So many that few elements more than `k` are expected below the bound, and not so many that finding it costs more.
    let n_lanes = k.saturating_mul(4).checked_next_power_of_two().unwrap_or(usize::MAX).max(BLOCK);
    let n_lanes = if n_lanes <= n / 2 { n_lanes } else { 0 };
    let slot_bytes = (Size::of(n) * 3 + n_lanes) * key_size + 64;
    let slot_bytes = slot_bytes.get("the workspace of TopK")?.next_multiple_of(64);
    let kernel = TopK {
        host: request.host,
        around: around(&from, axis),
        k,
        size: element_size(dtype),
        largest: request.attrs.int("largest", 1)? != 0,
        isa,
        read,
        n_lanes,
        slot_bytes,
    };
    Prepared::new(kernel).with_room(Size::of(slot_bytes) * request.host.n_slots(), 64)
}

fn reader<T: Ordered<Key: Key>>(isa: Isa) -> ReadFn {
    read::<T>(isa)
}

/// This slot's room for one axis.
struct Room<'a, K: Key> {
    entries: &'a mut [K::Entry],
    keys: &'a mut [K],
    lanes: &'a mut [K],
}

impl TopK {
    /// # Safety
    /// The workspace is the one that `prepare` asked for, and the slot is this chunk's own. `K` is the type of its keys.
    unsafe fn room<K: Key>(&self, workspace: SendPtr<u8>, slot: usize) -> Room<'_, K> {
        let n = self.around[1];
        let entries = workspace.at(slot * self.slot_bytes).cast::<K::Entry>();
        let keys = entries.wrapping_add(n).cast::<K>();
        let lanes = keys.wrapping_add(n);
        // SAFETY: a slot has room for an entry of twice a key's size and a key for each element (# Safety), and is aligned to 64
        // bytes; any bits are integers.
        let entries = unsafe { core::slice::from_raw_parts_mut(entries, n) };
        // SAFETY: as above; the keys come after the entries.
        let keys = unsafe { core::slice::from_raw_parts_mut(keys, n) };
        // SAFETY: as above; the lanes come after the keys.
        let lanes = unsafe { core::slice::from_raw_parts_mut(lanes, self.n_lanes) };
        Room { entries, keys, lanes }
    }

    /// Reads the keys of the elements that lie from `x` on.
    ///
    /// # Safety
    /// `x` is the first element along the axis, and `K` the type of the keys.
    unsafe fn read<K: Key>(&self, x: *const u8, keys: &mut [K], pace: &mut Pace<'_>) -> Result<()> {
        let inner = self.around[2];
        for (piece, keys) in keys.chunks_mut(PIECE).enumerate() {
            pace.work(2 * keys.len())?;
            let x = x.wrapping_add(piece * PIECE * inner * self.size);
            match self.read {
                Read::Narrow(read) | Read::Wide(read) => {
                    let n = keys.len();
                    // SAFETY: the elements lie along the axis, and there is room for their keys; the instructions are the
                    // device's.
                    unsafe { read(x, inner, self.largest, keys.as_mut_ptr().cast(), n) };
                }
                Read::Each(read) => {
                    for (i, key) in keys.iter_mut().enumerate() {
                        // SAFETY: the element lies along the axis.
                        let found = unsafe { read(x.add(i * inner * self.size)) };
                        let found = if self.largest { !found } else { found };
                        // SAFETY: such keys are u64 (# Safety).
                        unsafe { core::ptr::from_mut(key).cast::<u64>().write(found) };
                    }
                }
            }
        }
        Ok(())
    }

    /// Brings the `k` first elements to the front of the entries, in their order.
    fn sorted<K: Key>(&self, room: &mut Room<'_, K>, pace: &mut Pace<'_>) -> Result<()> {
        let Room { entries, keys, lanes } = room;
        let mut n = keys.len();
        if self.k <= FEW && n <= SHORT {
            pace.work(2 * n)?;
            insert(keys, self.k, entries);
            return Ok(());
        }
        if self.n_lanes == 0 {
            for (i, (entry, key)) in entries.iter_mut().zip(&**keys).enumerate() {
                *entry = key.entry(i);
            }
        } else {
            lanes.fill(K::HIGHEST);
            for (piece, keys) in keys.chunks(PIECE).enumerate() {
                pace.work(keys.len())?;
                // Both are powers of two.
                let lanes = &mut lanes[piece * PIECE % self.n_lanes..][..self.n_lanes.min(PIECE)];
                // SAFETY: the instructions are the device's.
                unsafe { deal::<K>(self.isa)(keys, lanes) };
            }
            let bound = if self.k <= FEW {
                insert(lanes, self.k, entries);
                K::of(entries[self.k - 1])
            } else {
                select(lanes, self.k, &Natural, pace)?;
                lanes[..self.k].iter().copied().max().unwrap_or(K::HIGHEST)
            };
            let mut found = Found { entries, n: 0, n_equal: 0 };
            for (piece, keys) in keys.chunks(PIECE).enumerate() {
                pace.work(2 * keys.len())?;
                // SAFETY: the instructions are the device's.
                unsafe { collect::<K>(self.isa)(keys, piece * PIECE, bound, self.k, &mut found) };
            }
            n = found.n;
        }
        let entries = &mut entries[..n];
        if n > self.k + self.k / 2 {
            select(entries, self.k, &Natural, pace)?;
            n = self.k;
        }
        sort(&mut entries[..n], &Natural, pace)
    }

    fn run<K: Key>(&self, operands: &mut Operands<'_>) -> Result<()> {
        let input = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let (values, positions) = (operands.output_ptr::<u8>(0), operands.output_ptr::<i64>(1));
        let (values, positions) = (SendPtr(values), SendPtr(positions));
        let workspace = SendPtr(operands.workspace_ptr::<u8>());
        let [outer, n, inner] = self.around;
        let grain = (16 * 1024 / n).max(1);
        self.host.parallel_for(outer * inner, grain, |range, slot| {
            let mut pace = self.host.pace();
            // SAFETY: the workspace is the one that `prepare` asked for, and this slot's part is this chunk's own.
            let mut room = unsafe { self.room::<K>(workspace, slot) };
            for lane in range {
                let (outer, inner_at) = (lane / inner, lane % inner);
                let at = |i: usize, n: usize| (outer * n + i) * inner + inner_at;
                // SAFETY: the element lies within the input, whose extents `prepare` was told.
                unsafe { self.read(input.at(at(0, n) * self.size), room.keys, &mut pace) }?;
                self.sorted(&mut room, &mut pace)?;
                for (i, &entry) in room.entries[..self.k].iter().enumerate() {
                    if i % PIECE == PIECE - 1 {
                        pace.work(2 * PIECE)?;
                    }
                    let position = K::position(entry);
                    if !positions.0.is_null() {
                        // SAFETY: the element lies within the output, whose extents were checked; chunks
                        // have lanes of their own.
                        unsafe { positions.at(at(i, self.k)).write(position as i64) };
                    }
                    if values.0.is_null() {
                        continue;
                    }
                    let source = input.at(at(position, n) * self.size);
                    let target = values.at(at(i, self.k) * self.size);
                    // SAFETY: the element lies within the output, the position is one of the input's, and chunks have
                    // lanes of their own.
                    unsafe { copy_run(source, target, self.size) };
                }
            }
            Ok(())
        })
    }
}

impl Launch<CpuDevice> for TopK {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        match self.read {
            _ if self.k == 0 => Ok(()),
            Read::Narrow(_) => self.run::<u32>(operands),
            Read::Wide(_) | Read::Each(_) => self.run::<u64>(operands),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};
    use core::cmp::Ordering;
    use devbay_plugin_api::sdk::Element;

    #[test]
    fn equal_elements_come_in_their_order() {
        let x = [2.0f32, f32::NAN, -0.0, 2.0, 0.0, 7.0];
        let top = |k: i64, largest: i64| {
            let n = k.clamp(0, 6) as usize;
            let inputs = [Some(Array::of(&[1, 6, 1], &x)), Some(Array::of(&[1], &[k]))];
            let outputs = [Some(Array::empty::<f32>(&[1, n, 1])), Some(Array::empty::<i64>(&[1, n, 1]))];
            let attrs = [("axis", Value::Int(1)), ("largest", Value::Int(largest))];
            let found = run(Isa::Baseline, "TopK", &attrs, &inputs, &outputs)?;
            Ok(found[1].as_ref().expect("positions").elements::<i64>())
        };
        assert_eq!(top(4, 1), Ok(vec![1, 5, 0, 3]));
        assert_eq!(top(6, 0), Ok(vec![2, 4, 0, 3, 5, 1]));
        assert_eq!(top(0, 1), Ok(vec![]));
        for k in [-1, 7] {
            let error: String = top(k, 1).expect_err("no such number of elements");
            assert!(error.contains(&format!("k is {k}")), "{error}");
        }
    }

    /// Few and many of axes that fill the lanes or do not, side by side and apart, with many equal elements and what is no number.
    #[test]
    fn any_part_of_any_axis_is_that_of_a_stable_sort() {
        let mut chance = Chance::new(7);
        for (shape, axis) in [([3, 1000, 1], 1), ([2, 131, 5], 1), ([1, 8400, 1], 1), ([2, 3, 257], 2)] {
            let n = shape[axis];
            let inner: usize = shape[axis + 1..].iter().product();
            for k in [1, 5, 16, n / 8, n / 2, n] {
                for few_values in [false, true] {
                    let mut x = chance.floats(shape.iter().product(), 3.0);
                    if few_values {
                        x.iter_mut().for_each(|x| *x = x.round());
                    }
                    for special in [f32::NAN, f32::INFINITY, -f32::NAN, f32::NEG_INFINITY, -0.0, 0.0] {
                        let at = chance.below(x.len());
                        x[at] = special;
                    }
                    for (largest, isa) in [0, 1].into_iter().flat_map(|l| isas().map(move |isa| (l, isa))) {
                        let mut to = shape;
                        to[axis] = k;
                        let mut expected = vec![0i64; to.iter().product()];
                        for lane in 0..x.len() / n {
                            let at = |i: usize, n: usize| (lane / inner * n + i) * inner + lane % inner;
                            let mut order: Vec<usize> = (0..n).collect();
                            let number = |i: usize| x[at(i, n)];
                            // What is no number comes last of the smallest, and first of the largest.
                            order.sort_by(|&a, &b| {
                                let (a, b) = if largest == 1 { (b, a) } else { (a, b) };
                                let (a, b) = (number(a), number(b));
                                a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(Ordering::Equal))
                            });
                            (0..k).for_each(|i| expected[at(i, k)] = order[i] as i64);
                        }
                        let inputs = [Some(Array::of(&shape, &x)), Some(Array::of(&[1], &[k as i64]))];
                        let outputs = [Some(Array::empty::<f32>(&to)), Some(Array::empty::<i64>(&to))];
                        let attrs = [("axis", Value::Int(axis as i64)), ("largest", Value::Int(largest))];
                        let found = run(isa, "TopK", &attrs, &inputs, &outputs).expect("TopK");
                        let positions = found[1].as_ref().expect("positions").elements::<i64>();
                        assert_eq!(positions, expected, "{k} of {shape:?}, largest {largest}, {isa:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn types_of_every_width_have_their_order() {
        fn check<T: Element + PartialEq + std::fmt::Debug>(of: fn(i64) -> T) {
            let x: Vec<i64> = (0..300).map(|i| i * 37 % 101 - 50).collect();
            let mut order: Vec<usize> = (0..x.len()).collect();
            order.sort_by_key(|&i| -x[i]);
            let elements: Vec<T> = x.iter().map(|&x| of(x)).collect();
            for isa in isas() {
                let inputs = [Some(Array::of(&[300], &elements)), Some(Array::of(&[1], &[7i64]))];
                let outputs = [Some(Array::empty::<T>(&[7])), Some(Array::empty::<i64>(&[7]))];
                let found = run(isa, "TopK", &[], &inputs, &outputs).expect("TopK");
                let positions = found[1].as_ref().expect("positions").elements::<i64>();
                assert!(positions.iter().zip(&order).all(|(&a, &b)| a == b as i64), "{positions:?}");
                let values = found[0].as_ref().expect("values").elements::<T>();
                assert_eq!(values, order[..7].iter().map(|&i| of(x[i])).collect::<Vec<_>>());
            }
        }
        check(|x| x as f64);
        check(|x| x);
        check(|x| x as i32);
        check(|x| x as i16);
        check(|x| x as i8);
        check(|x| (x + 50) as u64);
        check(|x| (x + 50) as u32);
        check(|x| (x + 50) as u16);
        check(|x| (x + 50) as u8);
    }

    #[test]
    fn integers_keep_all_their_digits() {
        let x = [(1i64 << 60) + 1, 1 << 60, (1 << 60) + 2, i64::MIN];
        let inputs = [Some(Array::of(&[4], &x)), Some(Array::of(&[1], &[2i64]))];
        let outputs = [Some(Array::empty::<i64>(&[2])), Some(Array::empty::<i64>(&[2]))];
        let found = run(Isa::Baseline, "TopK", &[], &inputs, &outputs).expect("sorts");
        assert_eq!(found[0], Some(Array::of(&[2], &[(1i64 << 60) + 2, (1 << 60) + 1])));
    }
}
