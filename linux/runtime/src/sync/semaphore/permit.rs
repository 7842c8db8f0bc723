//! Permits of a [`Semaphore`], borrowed and owned.

use std::sync::Arc;

use super::Semaphore;

/// Permits of a [`Semaphore`]; given back when dropped.
///
/// ```
/// use upshift::sync::{Semaphore, TryAcquireError};
///
/// let semaphore = Semaphore::new(4);
/// let mut permits = semaphore.try_acquire_many(3)?;
/// let one = permits.split(1).unwrap();
/// assert_eq!((permits.num_permits(), one.num_permits()), (2, 1));
/// permits.merge(one);
/// permits.forget();
/// assert_eq!(semaphore.available_permits(), 1);
/// # Ok::<(), TryAcquireError>(())
/// ```
#[derive(Debug)]
#[must_use = "the permits are given back when this is dropped"]
pub struct SemaphorePermit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

/// [`SemaphorePermit`] that keeps its [`Semaphore`] alive and can be moved into another coroutine.
///
/// ```
/// use std::sync::Arc;
/// use upshift::sync::Semaphore;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let semaphore = Arc::new(Semaphore::new(1));
/// let permit = semaphore.clone().acquire_owned().await.unwrap();
/// let worker = upshift::task::spawn(async move { permit.num_permits() });
/// // The permit is given back when the coroutine drops it.
/// assert!(semaphore.acquire().await.is_ok());
/// assert_eq!(worker.await.unwrap(), 1);
/// # });
/// ```
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

    /// Removes the permits from the semaphore, so that they are never given back.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(2);
    /// semaphore.try_acquire()?.forget();
    /// assert_eq!(semaphore.available_permits(), 1);
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Adds the permits of `other` to this permit.
    ///
    /// # Panics
    /// If `other` belongs to another semaphore.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// let mut permit = semaphore.try_acquire()?;
    /// permit.merge(semaphore.try_acquire_many(2)?);
    /// assert_eq!(permit.num_permits(), 3);
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    #[track_caller]
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            std::ptr::eq(self.semaphore, other.semaphore),
            "merging permits from different semaphore instances"
        );
        self.permits += std::mem::take(&mut other.permits);
    }

    /// Splits off `permits` of the permits. Returns `None` if there are fewer.
    ///
    /// ```
    /// let semaphore = upshift::sync::Semaphore::new(3);
    /// let mut permits = semaphore.try_acquire_many(3)?;
    /// drop(permits.split(2));
    /// assert_eq!(semaphore.available_permits(), 2);
    /// assert!(permits.split(2).is_none());
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    pub fn split(&mut self, permits: usize) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(SemaphorePermit::new(self.semaphore, permits))
    }

    /// Returns the semaphore of the permits.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        self.semaphore
    }

    /// Returns the number of permits.
    #[must_use]
    pub fn num_permits(&self) -> usize {
        self.permits
    }
}

impl OwnedSemaphorePermit {
    pub(super) fn new(semaphore: Arc<Semaphore>, permits: usize) -> OwnedSemaphorePermit {
        OwnedSemaphorePermit { semaphore, permits }
    }

    /// Removes the permits from the semaphore, so that they are never given back.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(2));
    /// semaphore.clone().try_acquire_owned()?.forget();
    /// assert_eq!(semaphore.available_permits(), 1);
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    pub fn forget(mut self) {
        self.permits = 0;
    }

    /// Adds the permits of `other` to this permit.
    ///
    /// # Panics
    /// If `other` belongs to another semaphore.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(3));
    /// let mut permit = semaphore.clone().try_acquire_owned()?;
    /// permit.merge(semaphore.try_acquire_many_owned(2)?);
    /// assert_eq!(permit.num_permits(), 3);
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    #[track_caller]
    pub fn merge(&mut self, mut other: Self) {
        assert!(
            Arc::ptr_eq(&self.semaphore, &other.semaphore),
            "merging permits from different semaphore instances"
        );
        self.permits += std::mem::take(&mut other.permits);
    }

    /// Splits off `permits` of the permits. Returns `None` if there are fewer.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use upshift::sync::Semaphore;
    ///
    /// let semaphore = Arc::new(Semaphore::new(3));
    /// let mut permits = semaphore.clone().try_acquire_many_owned(3)?;
    /// drop(permits.split(2));
    /// assert_eq!(semaphore.available_permits(), 2);
    /// # Ok::<(), upshift::sync::TryAcquireError>(())
    /// ```
    pub fn split(&mut self, permits: usize) -> Option<Self> {
        self.permits = self.permits.checked_sub(permits)?;
        Some(OwnedSemaphorePermit::new(self.semaphore.clone(), permits))
    }

    /// Returns the semaphore of the permits.
    #[must_use]
    pub fn semaphore(&self) -> &Arc<Semaphore> {
        &self.semaphore
    }

    /// Returns the number of permits.
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
