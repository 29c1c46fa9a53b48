//! Fallible allocation of memory whose size a model, an input or a file decides.
//!
//! `vec![0; n]`, `collect` and the like end the process if there is no memory. That is right for lists whose
//! length this repository decides, and wrong for all others. Core, host and plugins allocate the others only
//! through this module, so that one test can fail each allocation in turn ([`is_reserving`]) and one lint can
//! find allocations that bypass it. Numbers of elements and bytes are computed as a [`Size`], which does not
//! wrap.

use std::cell::Cell;
use std::fmt;
use std::ops::{Add, Mul};

/// Failure to allocate: the number of bytes requested, and their purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMemory {
    what: &'static str,
    bytes: Option<usize>,
}

impl NoMemory {
    /// Creates the error for a failed allocation of `bytes`; None for a number that overflows. `what` is a
    /// noun, such as "a table of positions".
    pub fn new(bytes: Option<usize>, what: &'static str) -> Self {
        Self { what, bytes }
    }

    /// Returns the requested number of bytes; None if it overflows.
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

/// Returns whether this thread is allocating through this module, where a NULL becomes an error and not an
/// abort. Test allocators use it to fail such requests in turn, or to find large requests that bypass this
/// module.
pub fn is_reserving() -> bool {
    RESERVING.get()
}

/// Runs an allocation that may fail and that the functions below do not cover, such as one with an alignment.
#[inline]
pub fn asking<R>(request: impl FnOnce() -> R) -> R {
    /// Clears the mark, even if the allocation panics.
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

/// A computed number of elements or bytes. Sums and products do not wrap; overflow is reported once, at the
/// end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size(Option<usize>);

impl Size {
    /// Wraps a known number.
    pub const fn of(n: usize) -> Self {
        Self(Some(n))
    }

    /// Multiplies extents: 0 if one is 0, however long the others are.
    pub fn of_extents(extents: &[usize]) -> Self {
        if extents.contains(&0) {
            return Self::of(0);
        }
        extents.iter().fold(Self::of(1), |size, &extent| size * extent)
    }

    /// Returns the number.
    ///
    /// # Errors
    /// If it overflows, or exceeds the memory that a process can have.
    pub fn get(self, what: &'static str) -> Result<usize, NoMemory> {
        let countable = self.0.filter(|&n| isize::try_from(n).is_ok());
        countable.ok_or(NoMemory::new(None, what))
    }

    /// Returns the number, or the largest number on overflow: for estimates.
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

/// Checks that there is memory for third-party code that would abort without it, by allocating and freeing
/// it.
///
/// Another thread may take the memory between this check and the third party's own allocation: the library
/// cannot turn that remaining case into an error.
///
/// # Errors
/// If there is no memory, or the number of bytes overflows.
pub fn room(bytes: Option<usize>, what: &'static str) -> Result<(), NoMemory> {
    let failed = NoMemory::new(bytes, what);
    let mut probe = Vec::<u8>::new();
    asking(|| probe.try_reserve_exact(bytes.ok_or(failed)?).map_err(|_| failed))
}

/// Reserves room for `more` elements of a list.
///
/// # Errors
/// If there is no memory; the list is unchanged.
pub fn grow<T>(list: &mut Vec<T>, more: usize, what: &'static str) -> Result<(), NoMemory> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    let failed = || NoMemory::new(list.len().checked_add(more).and_then(bytes_of::<T>), what);
    let failed = failed();
    asking(|| list.try_reserve(more)).map_err(|_| failed)
}

/// Creates an empty list with room for exactly `n` elements.
///
/// # Errors
/// If there is no memory.
pub fn with_capacity<T>(n: usize, what: &'static str) -> Result<Vec<T>, NoMemory> {
    let mut list = Vec::new();
    asking(|| list.try_reserve_exact(n)).map_err(|_| NoMemory::new(bytes_of::<T>(n), what))?;
    Ok(list)
}

/// Creates a list of `n` copies of an element.
///
/// # Errors
/// If there is no memory.
pub fn filled<T: Clone>(element: T, n: usize, what: &'static str) -> Result<Vec<T>, NoMemory> {
    let mut list = with_capacity(n, what)?;
    list.resize(n, element);
    Ok(list)
}

/// Types for which all bits zero is a valid value.
///
/// # Safety
/// All bits zero is a valid value of the type, and the type has no destructor.
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

/// Creates a list of `n` zeros, from untouched pages if the system has some.
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

/// Creates a list of `n` elements that needs no memory: an empty one, or one of a zero-sized type.
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
/// If there is no memory; the list is unchanged.
pub fn push<T>(list: &mut Vec<T>, element: T, what: &'static str) -> Result<(), NoMemory> {
    grow(list, 1, what)?;
    list.push(element);
    Ok(())
}

/// Appends elements to a list.
///
/// # Errors
/// If there is no memory; the list then has some of them.
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

/// Collects about `n` elements of an iterator, or returns its first error.
///
/// # Errors
/// If there is no memory; the iterator's first error.
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
