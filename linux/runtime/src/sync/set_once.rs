//! A value that is set once, and that others wait for.

use std::error::Error;
use std::fmt;

use super::atomic::const_fn;
use super::once_cell::cell_traits;
use super::{Notify, OnceCell};

/// A cell that is set once; what needs the value waits for it.
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
    set: Notify,
}

impl<T> SetOnce<T> {
    const_fn! {
        /// Empty; in a `static` too.
        #[must_use]
        pub const fn const_new() -> SetOnce<T> {
            SetOnce { cell: OnceCell::const_new(), set: Notify::new() }
        }
    }

    const_fn! {
        /// With this value; in a `static` too.
        #[must_use]
        pub const fn const_new_with(value: T) -> SetOnce<T> {
            SetOnce { cell: OnceCell::const_new_with(value), set: Notify::new() }
        }
    }

    /// Empty.
    #[must_use]
    pub fn new() -> SetOnce<T> {
        SetOnce::const_new()
    }

    /// With this value, if there is one.
    #[must_use]
    pub fn new_with(value: Option<T>) -> SetOnce<T> {
        value.map_or_else(SetOnce::new, SetOnce::const_new_with)
    }

    /// Is there a value?
    #[must_use]
    pub fn initialized(&self) -> bool {
        self.cell.initialized()
    }

    /// The value, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.cell.get()
    }

    /// Puts the value in and wakes those that wait for it, most urgent first.
    ///
    /// # Errors
    /// [`SetOnceError`] with the value: there is one.
    pub fn set(&self, value: T) -> Result<(), SetOnceError<T>> {
        match self.cell.set(value) {
            Ok(()) => {
                self.set.notify_waiters();
                Ok(())
            }
            // Another one is between the two steps.
            Err(
                super::SetError::AlreadyInitializedError(value)
                | super::SetError::InitializingError(value),
            ) => Err(SetOnceError(value)),
        }
    }

    /// Takes the value out.
    #[must_use]
    pub fn into_inner(self) -> Option<T> {
        self.cell.into_inner()
    }

    /// Waits for the value.
    pub async fn wait(&self) -> &T {
        super::proceed().await;
        loop {
            let set = self.set.notified();
            if let Some(value) = self.get() {
                return value;
            }
            set.await;
        }
    }
}

cell_traits!(SetOnce);

/// There is a value already; here is the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOnceError<T>(pub T);

impl<T> fmt::Display for SetOnceError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cell has a value: use `get`")
    }
}

impl<T: fmt::Debug> Error for SetOnceError<T> {}
