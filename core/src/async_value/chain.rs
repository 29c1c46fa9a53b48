//! Chains: async values without data, which order side effects.
//!
//! Work that must follow other work takes its chain and waits for it; order that data does not show is then seen in
//! the edges between operations. A chain carries errors as every other value: work that depends on a failure does
//! not happen.

use super::AsyncValueRef;

/// An async value without data.
pub type Chain = AsyncValueRef<()>;

impl Chain {
    /// Returns a chain for work without dependencies.
    pub fn ready() -> Self {
        Self::available(())
    }
}
