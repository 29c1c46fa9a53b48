//! Handles: keys of tables, one table per type of object.
//!
//! A key has the slot of its object and the number of objects that the slot had before. A handle that was destroyed finds
//! nothing, even if its slot is in use again. Whoever has looked an object up keeps it: one that is destroyed meanwhile is
//! dropped after the last use.

use devbay_host::internals::forks::Here;
use devbay_host::{Error, ErrorKind, Result};
use sharded_slab::{Config, Entry, OwnedEntry, Slab};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Settings of the tables.
pub struct Keys;

impl Config for Keys {
    // A handle is a key times two plus one: never NULL, and never the address of anything aligned.
    const RESERVED_BITS: usize = 1;
}

/// A table.
pub type Table<T> = LazyLock<Arc<Slab<Here<T>, Keys>>>;

/// An object that is being used.
pub struct Used<T: Object>(Entry<'static, Here<T>, Keys>);

impl<T: Object> Deref for Used<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.again()
    }
}

/// An object that is kept for as long as this exists.
pub type Kept<T> = OwnedEntry<Here<T>, Keys>;

/// A type of objects with handles.
pub trait Object: Sized + Send + Sync + 'static {
    /// The incomplete type in C, whose pointers are the handles.
    type Handle;

    /// Its name in messages.
    const NAME: &'static str;

    /// Returns the table of all its objects.
    fn table() -> &'static Table<Self>;
}

/// Declares the handles of a type.
macro_rules! object {
    ($object:ty, $handle:ty, $name:literal) => {
        impl $crate::handles::Object for $object {
            type Handle = $handle;

            const NAME: &'static str = $name;

            fn table() -> &'static $crate::handles::Table<Self> {
                static TABLE: $crate::handles::Table<$object> =
                    std::sync::LazyLock::new(|| std::sync::Arc::new(sharded_slab::Slab::new_with_config()));
                &TABLE
            }
        }
    };
}
pub(crate) use object;

/// The handle of an error that found no place in its table.
const NO_PLACE: usize = usize::MAX;

static N_LIVE: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of handles that were made and not destroyed.
pub fn n_live() -> usize {
    N_LIVE.load(Ordering::Relaxed)
}

fn handle_of<T>(key: usize) -> *mut T {
    std::ptr::without_provenance_mut(key << 1 | 1)
}

#[inline]
fn key_of<T>(handle: *const T) -> Option<usize> {
    let handle = handle.addr();
    (handle & 1 == 1 && handle != NO_PLACE).then_some(handle >> 1)
}

/// Puts an object into its table; None if that is full.
pub fn try_make<T: Object>(object: T) -> Option<*mut T::Handle> {
    let key = T::table().insert(Here::new(object))?;
    N_LIVE.fetch_add(1, Ordering::Relaxed);
    Some(handle_of(key))
}

/// Returns the handle that stands for an error without a place.
pub fn no_place<T>() -> *mut T {
    std::ptr::without_provenance_mut(NO_PLACE)
}

/// Makes a handle.
///
/// # Errors
/// [`ErrorKind::OutOfMemory`] if there are as many as there can be.
pub fn make<T: Object>(object: T) -> Result<*mut T::Handle> {
    try_make(object).ok_or_else(|| Error::new(ErrorKind::OutOfMemory, format!("too many {}s", T::NAME)))
}

#[cold]
fn unknown<T: Object>(handle: *const T::Handle) -> Error {
    let reason = match handle.is_null() {
        true => "NULL",
        false => "destroyed before, or never made",
    };
    Error::new(ErrorKind::InvalidArgument, format!("the {} is {reason}", T::NAME))
}

/// Looks an object up.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a handle that is NULL, was destroyed, or never was one; [`ErrorKind::Unavailable`] in a forked
/// child.
// Not as a call: a guard that is returned through memory takes as long as the lookup.
#[inline(always)]
pub fn get<T: Object>(handle: *const T::Handle) -> Result<Used<T>> {
    let Some(entry) = key_of(handle).and_then(|key| T::table().get(key)) else {
        return Err(unknown::<T>(handle));
    };
    match entry.get() {
        Ok(_) => Ok(Used(entry)),
        Err(error) => Err(error),
    }
}

/// Looks an object up, to keep it.
///
/// # Errors
/// As [`get`].
pub fn keep<T: Object>(handle: *const T::Handle) -> Result<Kept<T>> {
    let found = key_of(handle).and_then(|key| Arc::clone(T::table()).get_owned(key));
    let kept = found.ok_or_else(|| unknown::<T>(handle))?;
    kept.get()?;
    Ok(kept)
}

/// Destroys a handle. NULL and handles that are gone already are ignored.
pub fn destroy<T: Object>(handle: *mut T::Handle) {
    if let Some(key) = key_of(handle)
        && T::table().remove(key)
    {
        N_LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place of the caller's for a result.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Puts a result into the caller's place.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the place is NULL.
pub fn give<T>(out: Out<'_, T>, value: T) -> Result<()> {
    let out =
        out.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "the place for the result is NULL"))?;
    out.write(value);
    Ok(())
}

/// Makes an object, and puts its handle into the caller's place. Without a place, nothing is made.
///
/// # Errors
/// As [`give`] and [`make`], and those of `object`.
pub fn give_new<T: Object>(out: Out<'_, *mut T::Handle>, object: impl FnOnce() -> Result<T>) -> Result<()> {
    let out = out.ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, format!("the place for the new {} is NULL", T::NAME))
    })?;
    out.write(std::ptr::null_mut());
    out.write(make(object()?)?);
    Ok(())
}
