//! Permits of a [`Semaphore`]: borrowed ones, and such as keep it alive.

use std::sync::Arc;

use super::Semaphore;

/// Permits of a [`Semaphore`]; dropping it gives them back.
#[derive(Debug)]
#[must_use = "the permits are given back when this is dropped"]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

/// [`SemaphorePermit`] that keeps its [`Semaphore`] alive.
#[derive(Debug)]
#[must_use = "the permits are given back when this is dropped"]
pub struct OwnedSemaphorePermit {
    semaphore: Arc<Semaphore>,
    permits: usize,
}

impl<'a> SemaphorePermit<'a> {
    pub(super) fn new(semaphore: &'a Semaphore, permits: usize) -> SemaphorePermit<'a> {
        SemaphorePermit { semaphore, permits }
    }

    /// Takes the permits away for good.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Makes the permits of `other` those of this.
    ///
    /// # Panics
    /// If they are of another semaphore.
    #[track_caller]
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            std::ptr::eq(self.semaphore, other.semaphore),
            "merging permits from different semaphore instances"
        );
        self.permits += std::mem::take(&mut other.permits);
    }

    /// Takes so many permits out; `None` if there are fewer.
    pub fn split(&mut self, permits: usize) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(SemaphorePermit::new(self.semaphore, permits))
    }

    /// Whose permits they are.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        self.semaphore
    }

    /// How many.
    #[must_use]
    pub fn num_permits(&self) -> usize {
        self.permits
    }
}

impl OwnedSemaphorePermit {
    pub(super) fn new(semaphore: Arc<Semaphore>, permits: usize) -> OwnedSemaphorePermit {
        OwnedSemaphorePermit { semaphore, permits }
    }

    /// Takes the permits away for good.
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Makes the permits of `other` those of this.
    ///
    /// # Panics
    /// If they are of another semaphore.
    #[track_caller]
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            Arc::ptr_eq(&self.semaphore, &other.semaphore),
            "merging permits from different semaphore instances"
        );
        self.permits += std::mem::take(&mut other.permits);
    }

    /// Takes so many permits out; `None` if there are fewer.
    pub fn split(&mut self, permits: usize) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(OwnedSemaphorePermit::new(self.semaphore.clone(), permits))
    }

    /// Whose permits they are.
    #[must_use]
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }

    /// How many.
    #[must_use]
    pub fn num_permits(&self) -> usize {
        self.permits
    }
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        self.semaphore.add_permits(self.permits);
    }
}

impl Drop for OwnedSemaphorePermit {
    fn drop(&mut self) {
        self.semaphore.add_permits(self.permits);
    }
}
