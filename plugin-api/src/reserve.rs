//! Memory whose size a model, an input or a file decides: taken so that a lack of it is an error.
//!
//! `vec![0; n]`, `collect` and their kind end the process when there is no memory. That is right for lists whose
//! length this repository decides, and wrong for all others. Core, host and plugins take the others from here, and
//! from here alone, so that one test can fail each of them in turn ([`is_reserving`]) and one lint can find what goes
//! past. Numbers of elements and bytes are worked out as a [`Size`], which does not wrap.

use std::cell::Cell;
use std::fmt;
use std::ops::{Add, Mul};

/// No memory: how much was asked for, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory {
    what: &'static str,
    bytes: Option<usize>,
}

impl NoMemory {
    /// Makes the error for so many bytes that are not there; None for a number that cannot be counted. `what` is a noun,
    /// such as "a table of positions".
    pub fn new(bytes: Option<usize>, what: &'static str) -> Self {
        Self { what, bytes }
    }

    /// Returns the bytes that were asked for; None if they are more than can be counted.
    pub fn bytes(&self) -> Option<usize> {
        self.bytes
    }
}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) => write!(f, "no memory for {}: {bytes} bytes", self.what),
            None => write!(f, "no memory for {}: more bytes than can be counted", self.what),
        }
    }
}

impl std::error::Error for NoMemory {}

thread_local! {
    // No destructor: an allocator may ask at any time.
    static RESERVING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is asking for memory through this module: then a NULL becomes an error and not an abort.
/// For allocators of tests, which fail such requests in turn or look for large ones that go past.
pub fn is_reserving() -> bool {
    RESERVING.get()
}

/// Runs a request that may fail: one that does not go through the functions below, as of memory with an alignment.
#[inline]
pub fn asking<R>(request: impl FnOnce() -> R) -> R {
    /// Clears the mark also when the request panics.
    struct Mark(bool);
    impl Drop for Mark {
        fn drop(&mut self) {
            RESERVING.set(self.0);
        }
    }
    let _mark = Mark(RESERVING.replace(true));
    request()
}

fn bytes_of<T>(n: usize) -> Option<usize> {
    n.checked_mul(size_of::<T>())
}

/// A number of elements or bytes as it is worked out: sums and products that do not wrap, and are asked once, at the
/// end, whether they could be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(Option<usize>);

impl Size {
    /// Wraps a number that is known.
    pub const fn of(n: usize) -> Self {
        Self(Some(n))
    }

    /// Multiplies extents: 0 where one is 0, however long the others are.
    pub fn of_extents(extents: &[usize]) -> Self {
        if extents.contains(&0) {
            return Self::of(0);
        }
        extents.iter().fold(Self::of(1), |size, &extent| size * extent)
    }

    /// Returns the number.
    ///
    /// # Errors
    /// If it cannot be counted, or is more than a process can have.
    pub fn get(self, what: &'static str) -> Result<usize, NoMemory> {
        let countable = self.0.filter(|&n| isize::try_from(n).is_ok());
        countable.ok_or(NoMemory::new(None, what))
    }

    /// Returns the number, or the largest there is: for estimates.
    pub fn saturated(self) -> usize {
        self.0.unwrap_or(usize::MAX)
    }

    /// Rounds up to a multiple of `n`, above 0.
    #[must_use]
    pub fn next_multiple_of(self, n: usize) -> Self {
        Self(self.0.and_then(|size| size.checked_next_multiple_of(n)))
    }
}

impl Mul<Size> for Size {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        match (self.0, other.0) {
            // An uncountable number of nothing.
            (Some(0), _) | (_, Some(0)) => Self::of(0),
            (a, b) => Self(a.zip(b).and_then(|(a, b)| a.checked_mul(b))),
        }
    }
}

impl Mul<usize> for Size {
    type Output = Self;

    fn mul(self, n: usize) -> Self {
        self * Self::of(n)
    }
}

impl Add<Size> for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.zip(other.0).and_then(|(a, b)| a.checked_add(b)))
    }
}

impl Add<usize> for Size {
    type Output = Self;

    fn add(self, n: usize) -> Self {
        self + Self::of(n)
    }
}

/// Checks that there is memory for code of others, which would abort without it: takes and frees it.
///
/// Between this and the other's own request another thread may take the memory: that is the rest that the library
/// cannot turn into an error.
///
/// # Errors
/// If there is not, or for a number of bytes that cannot be counted.
pub fn room(bytes: Option<usize>, what: &'static str) -> Result<(), NoMemory> {
    let failed = NoMemory::new(bytes, what);
    let mut probe = Vec::<u8>::new();
    asking(|| probe.try_reserve_exact(bytes.ok_or(failed)?).map_err(|_| failed))
}

/// Makes room for `more` elements of a list.
///
/// # Errors
/// If there is no memory; the list is as it was.
pub fn grow<T>(list: &mut Vec<T>, more: usize, what: &'static str) -> Result<(), NoMemory> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    let failed = || NoMemory::new(list.len().checked_add(more).and_then(bytes_of::<T>), what);
    let failed = failed();
    asking(|| list.try_reserve(more)).map_err(|_| failed)
}

/// Makes an empty list with room for exactly `n` elements.
///
/// # Errors
/// If there is no memory.
pub fn with_capacity<T>(n: usize, what: &'static str) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    asking(|| list.try_reserve_exact(n)).map_err(|_| NoMemory::new(bytes_of::<T>(n), what))?;
    Ok(list)
}

/// Makes a list of `n` times the same element.
///
/// # Errors
/// If there is no memory.
pub fn filled<T: Clone>(element: T, n: usize, what: &'static str) -> Result<Vec<T>, NoMemory> {
    let mut list = with_capacity(n, what)?;
    list.resize(n, element);
    Ok(list)
}

/// Types whose values may be all bits zero.
///
/// # Safety
/// All bits zero is a value of the type, which has no destructor to run.
pub unsafe trait Zero: Copy {}

macro_rules! zero {
    ($($ty:ty),*) => {$(
        // SAFETY: all bits zero is the number 0, or false.
        unsafe impl Zero for $ty {}
    )*};
}
zero!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64, bool);
// SAFETY: each element is zero.
unsafe impl<T: Zero, const N: usize> Zero for [T; N] {}

/// Makes a list of `n` zeros: untouched pages where the system has some.
///
/// # Errors
/// If there is no memory.
pub fn zeroed<T: Zero>(n: usize, what: &'static str) -> Result<Vec<T>, NoMemory> {
    use std::alloc::{Layout, alloc_zeroed};
    let failed = NoMemory::new(bytes_of::<T>(n), what);
    let layout = Layout::array::<T>(n).map_err(|_| failed)?;
    if layout.size() == 0 {
        return filled_without_bytes(n, failed);
    }
    // SAFETY: the layout has a size above 0.
    let start = asking(|| unsafe { alloc_zeroed(layout) }).cast::<T>();
    if start.is_null() {
        return Err(failed);
    }
    // SAFETY: allocated by the global allocator with the layout of `n` elements, which are zero, a value of `T`.
    Ok(unsafe { Vec::from_raw_parts(start, n, n) })
}

/// Makes a list of `n` elements that need no memory: none, or of a type without a size.
fn filled_without_bytes<T: Zero>(n: usize, failed: NoMemory) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    asking(|| list.try_reserve_exact(n)).map_err(|_| failed)?;
    // SAFETY: there are no bytes to be written, and `Zero` says that a value needs none.
    unsafe { list.set_len(n) };
    Ok(list)
}

/// Copies elements.
///
/// # Errors
/// If there is no memory.
pub fn copied<T: Clone>(elements: &[T], what: &'static str) -> Result<Vec<T>, NoMemory> {
    let mut list = with_capacity(elements.len(), what)?;
    list.extend_from_slice(elements);
    Ok(list)
}

/// Appends an element to a list.
///
/// # Errors
/// If there is no memory; the list is as it was.
pub fn push<T>(list: &mut Vec<T>, element: T, what: &'static str) -> Result<(), NoMemory> {
    grow(list, 1, what)?;
    list.push(element);
    Ok(())
}

/// Appends elements to a list.
///
/// # Errors
/// If there is no memory; then the list has some of them.
pub fn extend<T>(
    list: &mut Vec<T>,
    elements: impl IntoIterator<Item = T>,
    what: &'static str,
) -> Result<(), NoMemory> {
    let mut elements = elements.into_iter();
    let known = elements.size_hint().0;
    grow(list, known, what)?;
    // As many as promised fit; further ones are asked for as they come.
    list.extend(elements.by_ref().take(known));
    for element in elements {
        push(list, element, what)?;
    }
    Ok(())
}

/// Collects the elements of an iterator.
///
/// # Errors
/// If there is no memory.
pub fn collected<T>(elements: impl IntoIterator<Item = T>, what: &'static str) -> Result<Vec<T>, NoMemory> {
    let elements = elements.into_iter();
    let mut list = with_capacity(elements.size_hint().0, what)?;
    extend(&mut list, elements, what)?;
    Ok(list)
}

/// Collects the elements of an iterator, or its first error. `n` elements are expected.
///
/// # Errors
/// If there is no memory; the iterator's first.
pub fn try_collected<T, E: From<NoMemory>>(
    n: usize,
    elements: impl IntoIterator<Item = Result<T, E>>,
    what: &'static str,
) -> Result<Vec<T>, E> {
    let mut list = with_capacity(n, what)?;
    for element in elements {
        push(&mut list, element?, what)?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: &str = "a test";

    #[test]
    fn lists_are_what_the_usual_ways_give() {
        assert_eq!(filled(7u8, 3, WHAT), Ok(vec![7; 3]));
        assert_eq!(zeroed::<f32>(1000, WHAT), Ok(vec![0.0; 1000]));
        assert_eq!(zeroed::<u64>(0, WHAT), Ok(vec![]));
        assert_eq!(zeroed::<[u8; 0]>(3, WHAT), Ok(vec![[]; 3]));
        assert_eq!(copied(&["a", "b"], WHAT), Ok(vec!["a", "b"]));
        assert_eq!(collected(0..5, WHAT), Ok(vec![0, 1, 2, 3, 4]));
        // An iterator that does not know how many elements it gives.
        assert_eq!(collected((0..100).filter(|i| i % 3 == 0), WHAT).map(|list| list.len()), Ok(34));
        let odd = |i: usize| if i % 2 == 1 { Ok(i) } else { Err(NoMemory::new(Some(i), WHAT)) };
        assert_eq!(try_collected(2, [1, 3, 5].map(odd), WHAT), Ok(vec![1, 3, 5]));
        assert_eq!(try_collected(0, [1, 4, 5].map(odd), WHAT), Err(NoMemory::new(Some(4), WHAT)));
    }

    #[test]
    fn what_does_not_fit_is_an_error_that_says_how_much() {
        let n = isize::MAX as usize;
        assert_eq!(filled(0u8, n, WHAT).unwrap_err().bytes(), Some(n));
        assert_eq!(zeroed::<u8>(n, WHAT).unwrap_err().bytes(), Some(n));
        assert_eq!(zeroed::<u64>(n, WHAT).unwrap_err().bytes(), None);
        assert_eq!(collected(0..n as u64, WHAT).unwrap_err().bytes(), None);
        assert_eq!(
            room(None, WHAT).unwrap_err().to_string(),
            "no memory for a test: more bytes than can be counted"
        );
        assert_eq!(room(Some(n), WHAT).unwrap_err().to_string(), format!("no memory for a test: {n} bytes"));
        assert_eq!(room(Some(64), WHAT), Ok(()));
        let mut list = vec![1u8];
        assert!(grow(&mut list, n, WHAT).is_err());
        assert_eq!(list, [1]);
        assert!(!is_reserving());
    }

    #[test]
    fn sizes_do_not_wrap() {
        let get = |size: Size| size.get(WHAT).ok();
        assert_eq!(get(Size::of_extents(&[1 << 40, 1 << 40, 0])), Some(0));
        assert_eq!(get(Size::of_extents(&[1 << 40, 1 << 40])), None);
        assert_eq!(get(Size::of_extents(&[])), Some(1));
        let none = Size::of(0);
        assert_eq!(get(Size::of(1 << 40) * (1 << 40) * none), Some(0));
        assert_eq!(get(Size::of(usize::MAX) + 1), None);
        assert_eq!(get(Size::of(usize::MAX)), None);
        assert_eq!(get((Size::of(3) + 4) * Size::of(5)), Some(35));
        assert_eq!(get(Size::of(17).next_multiple_of(16)), Some(32));
        assert_eq!(get(Size::of(usize::MAX - 1).next_multiple_of(16)), None);
        assert_eq!((Size::of(usize::MAX) * 2).saturated(), usize::MAX);
    }

    #[test]
    fn requests_are_marked() {
        assert!(!is_reserving());
        assert!(asking(is_reserving));
        assert!(!is_reserving());
    }
}
