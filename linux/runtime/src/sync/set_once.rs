//! A cell that is set once, and whose value coroutines can await.

use std::error::Error;
use std::fmt;

use super::atomic::const_fn;
use super::once_cell::cell_traits;
use super::{Notify, OnceCell};

/// A cell that is set once; coroutines that need the value wait for it.
///
/// ```
/// use std::sync::Arc;
/// use upshift::{Priority, sync::SetOnce};
///
/// upshift::Runtime::new()?.block_on(async {
///     let address = Arc::new(SetOnce::new());
///     let theirs = address.clone();
///     upshift::spawn(async move { theirs.set(7) }, Priority::Inherit).detach();
///     assert_eq!(*address.wait().await, 7);
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct SetOnce<T> {
    cell: OnceCell<T>,
    /// Notified when the value has been set.
    set: Notify,
}

impl<T> SetOnce<T> {
    const_fn! {
        /// Creates an empty cell. Can be used to initialize a `static`.
        ///
        /// ```
        /// use upshift::sync::SetOnce;
        ///
        /// static PORT: SetOnce<u16> = SetOnce::const_new();
        /// PORT.set(8080)?;
        /// assert_eq!(PORT.get(), Some(&8080));
        /// # Ok::<(), upshift::sync::SetOnceError<u16>>(())
        /// ```
        #[must_use]
        pub const fn const_new() -> SetOnce<T> {
            SetOnce { cell: OnceCell::const_new(), set: Notify::new() }
        }
    }

    const_fn! {
        /// Creates a cell with this value. Can be used to initialize a `static`.
        ///
        /// ```
        /// use upshift::sync::SetOnce;
        ///
        /// static PORT: SetOnce<u16> = SetOnce::const_new_with(8080);
        /// assert_eq!(PORT.get(), Some(&8080));
        /// ```
        #[must_use]
        pub const fn const_new_with(value: T) -> SetOnce<T> {
            SetOnce { cell: OnceCell::const_new_with(value), set: Notify::new() }
        }
    }

    /// Creates an empty cell.
    ///
    /// ```
    /// let cell = upshift::sync::SetOnce::new();
    /// assert!(!cell.initialized());
    /// cell.set(1)?;
    /// assert!(cell.initialized());
    /// # Ok::<(), upshift::sync::SetOnceError<i32>>(())
    /// ```
    #[must_use]
    pub fn new() -> SetOnce<T> {
        SetOnce::const_new()
    }

    /// Creates a cell with the value, or an empty cell if `value` is `None`.
    ///
    /// ```
    /// use upshift::sync::SetOnce;
    ///
    /// assert_eq!(SetOnce::new_with(Some(1)).get(), Some(&1));
    /// assert_eq!(SetOnce::<i32>::new_with(None).get(), None);
    /// ```
    #[must_use]
    pub fn new_with(value: Option<T>) -> SetOnce<T> {
        value.map_or_else(SetOnce::new, SetOnce::const_new_with)
    }

    /// Returns true if the cell has a value.
    #[must_use]
    pub fn initialized(&self) -> bool {
        self.cell.initialized()
    }

    /// Returns the value, if the cell has one.
    ///
    /// ```
    /// let cell = upshift::sync::SetOnce::new();
    /// assert_eq!(cell.get(), None);
    /// cell.set(1)?;
    /// assert_eq!(cell.get(), Some(&1));
    /// # Ok::<(), upshift::sync::SetOnceError<i32>>(())
    /// ```
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.cell.get()
    }

    /// Sets the value and wakes the coroutines that wait for it, most urgent first.
    ///
    /// # Errors
    /// [`SetOnceError`] with `value` if the cell already has a value.
    ///
    /// ```
    /// let cell = upshift::sync::SetOnce::new();
    /// cell.set(1)?;
    /// assert_eq!(cell.set(2).unwrap_err().0, 2);
    /// # Ok::<(), upshift::sync::SetOnceError<i32>>(())
    /// ```
    pub fn set(&self, value: T) -> Result<(), SetOnceError<T>> {
        match self.cell.set(value) {
            Ok(()) => {
                self.set.notify_waiters();
                Ok(())
            }
            // `InitializingError` means that another thread is in the middle of the same call.
            Err(
                super::SetError::AlreadyInitializedError(value)
                | super::SetError::InitializingError(value),
            ) => Err(SetOnceError(value)),
        }
    }

    /// Consumes the cell and returns the value.
    ///
    /// ```
    /// let cell = upshift::sync::SetOnce::new_with(Some("value"));
    /// assert_eq!(cell.into_inner(), Some("value"));
    /// ```
    #[must_use]
    pub fn into_inner(self) -> Option<T> {
        self.cell.into_inner()
    }

    /// Waits for the value.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let cell = upshift::sync::SetOnce::new_with(Some(7));
    /// assert_eq!(*cell.wait().await, 7);
    /// # });
    /// ```
    pub async fn wait(&self) -> &T {
        super::proceed().await;
        loop {
            let notified = self.set.notified();
            if let Some(value) = self.get() {
                return value;
            }
            notified.await;
        }
    }
}

cell_traits!(SetOnce);

/// The error of [`SetOnce::set`]: the cell already has a value. Contains the rejected value.
///
/// ```
/// use upshift::sync::{SetOnce, SetOnceError};
///
/// let cell = SetOnce::new_with(Some(1));
/// let SetOnceError(rejected) = cell.set(2).unwrap_err();
/// assert_eq!((rejected, cell.get()), (2, Some(&1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOnceError<T>(pub T);

impl<T> fmt::Display for SetOnceError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cell has a value: use `get`")
    }
}

impl<T: fmt::Debug> Error for SetOnceError<T> {}
