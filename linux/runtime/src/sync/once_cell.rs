//! A cell that its first user initializes.
//!
//! Invariant: the holder of `init_lock` writes `value`, before `has_value` is set, and nothing
//! writes `value` again while the cell is shared. So a thread that sees `has_value` may read it.

use std::cell::UnsafeCell;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;

use super::Mutex;
use super::atomic::{AtomicU64, Ordering, const_fn};

/// A cell that is filled once, if need be by an `async` function.
///
/// One coroutine makes the value; other coroutines wait, and meanwhile *lend it their level*, so
/// that urgent work does not wait for work at the levels between. If making the value fails, panics
/// or is cancelled, the most urgent waiter tries next.
///
/// ```
/// use upshift::sync::OnceCell;
///
/// static ANSWER: OnceCell<u32> = OnceCell::const_new();
///
/// upshift::Runtime::new()?.block_on(async {
///     assert_eq!(*ANSWER.get_or_init(async || 42).await, 42);
///     assert_eq!(ANSWER.get(), Some(&42));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct OnceCell<T> {
    has_value: AtomicU64,
    init_lock: Mutex<()>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: sending a cell sends its value, and `T: Send` allows that.
unsafe impl<T: Send> Send for OnceCell<T> {}
// SAFETY: threads that share a cell read its value, which `T: Sync` allows. One thread may move the
// value in and another thread drop it, which `T: Send` allows.
unsafe impl<T: Send + Sync> Sync for OnceCell<T> {}
impl<T: std::panic::UnwindSafe> std::panic::UnwindSafe for OnceCell<T> {}
impl<T: std::panic::RefUnwindSafe + std::panic::UnwindSafe> std::panic::RefUnwindSafe
    for OnceCell<T>
{
}

impl<T> OnceCell<T> {
    const_fn! {
        /// Creates an empty cell. Can be called in a `static`.
        ///
        /// ```
        /// use upshift::sync::OnceCell;
        ///
        /// static ADDRESS: OnceCell<String> = OnceCell::const_new();
        /// assert!(ADDRESS.get().is_none());
        /// ```
        #[must_use]
        pub const fn const_new() -> OnceCell<T> {
            OnceCell {
                has_value: AtomicU64::new(0),
                init_lock: Mutex::new(()),
                value: UnsafeCell::new(None),
            }
        }
    }

    const_fn! {
        /// Creates a cell with this value. Can be called in a `static`.
        ///
        /// ```
        /// use upshift::sync::OnceCell;
        ///
        /// static ANSWER: OnceCell<u32> = OnceCell::const_new_with(42);
        /// assert_eq!(ANSWER.get(), Some(&42));
        /// ```
        #[must_use]
        pub const fn const_new_with(value: T) -> OnceCell<T> {
            OnceCell {
                has_value: AtomicU64::new(1),
                init_lock: Mutex::new(()),
                value: UnsafeCell::new(Some(value)),
            }
        }
    }

    /// Creates an empty cell.
    ///
    /// ```
    /// let cell = upshift::sync::OnceCell::new();
    /// assert!(!cell.initialized());
    /// cell.set(1)?;
    /// assert!(cell.initialized());
    /// # Ok::<(), upshift::sync::SetError<i32>>(())
    /// ```
    #[must_use]
    pub fn new() -> OnceCell<T> {
        OnceCell::const_new()
    }

    /// Creates a cell with this value, or an empty cell.
    ///
    /// ```
    /// use upshift::sync::OnceCell;
    ///
    /// assert_eq!(OnceCell::new_with(Some(1)).get(), Some(&1));
    /// assert_eq!(OnceCell::<i32>::new_with(None).get(), None);
    /// ```
    #[must_use]
    pub fn new_with(value: Option<T>) -> OnceCell<T> {
        value.map_or_else(OnceCell::new, OnceCell::const_new_with)
    }

    /// Returns true if the cell has a value.
    #[must_use]
    pub fn initialized(&self) -> bool {
        self.has_value.load(Ordering::Acquire) != 0
    }

    /// Returns the value, if the cell has one.
    ///
    /// ```
    /// let cell = upshift::sync::OnceCell::new();
    /// assert_eq!(cell.get(), None);
    /// cell.set(1).unwrap();
    /// assert_eq!(cell.get(), Some(&1));
    /// ```
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        if !self.initialized() {
            return None;
        }
        // SAFETY: the value was written before `has_value` was set, and nothing writes it again
        // while the cell is shared.
        unsafe { &*self.value.get() }.as_ref()
    }

    /// Returns the value, if the cell has one.
    ///
    /// ```
    /// let mut cell = upshift::sync::OnceCell::new_with(Some(1));
    /// *cell.get_mut().unwrap() += 1;
    /// assert_eq!(cell.into_inner(), Some(2));
    /// ```
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut().as_mut()
    }

    /// Consumes the cell and returns the value.
    ///
    /// ```
    /// let cell = upshift::sync::OnceCell::<u8>::new();
    /// assert_eq!(cell.into_inner(), None);
    /// ```
    #[must_use]
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value out and leaves the cell empty.
    ///
    /// ```
    /// let mut cell = upshift::sync::OnceCell::new_with(Some(1));
    /// assert_eq!(cell.take(), Some(1));
    /// assert!(!cell.initialized());
    /// ```
    pub fn take(&mut self) -> Option<T> {
        std::mem::take(self).into_inner()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// [`SetError`] with `value` if the cell has a value or is being initialized.
    ///
    /// ```
    /// let cell = upshift::sync::OnceCell::new();
    /// cell.set(1)?;
    /// assert!(cell.set(2).unwrap_err().is_already_init_err());
    /// # Ok::<(), upshift::sync::SetError<i32>>(())
    /// ```
    pub fn set(&self, value: T) -> Result<(), SetError<T>> {
        let init_lock = self.init_lock.try_lock();
        if self.initialized() {
            return Err(SetError::AlreadyInitializedError(value));
        }
        if init_lock.is_err() {
            return Err(SetError::InitializingError(value));
        }
        self.fill(value);
        Ok(())
    }

    /// Stores the value. The caller holds `init_lock`, and the cell is empty.
    fn fill(&self, value: T) -> &T {
        // SAFETY: the holder of `init_lock` is the only writer, and no thread reads the value
        // before `has_value` is set.
        let value = unsafe { (*self.value.get()).insert(value) };
        self.has_value.store(1, Ordering::Release);
        value
    }

    /// Returns the value. Initializes an empty cell with the result of `make`.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. A half-made value is then dropped, and the most
    /// urgent waiter begins to make a new value.
    ///
    /// # Deadlock
    /// If `make` initializes the same cell, the future waits for itself.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let cell = upshift::sync::OnceCell::new();
    /// assert_eq!(*cell.get_or_init(async || 1).await, 1);
    /// assert_eq!(*cell.get_or_init(async || 2).await, 1);
    /// # });
    /// ```
    pub async fn get_or_init<F, Fut>(&self, make: F) -> &T
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = T>,
    {
        let init = self.get_or_try_init(|| async { Ok::<T, Infallible>(make().await) });
        match init.await {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// Returns the value. Initializes an empty cell with the result of `make`.
    ///
    /// # Cancellation safety
    /// Like that of [`get_or_init`](OnceCell::get_or_init).
    ///
    /// # Errors
    /// The error of `make`; the cell stays empty.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let cell = upshift::sync::OnceCell::new();
    /// let failed = cell.get_or_try_init(async || "x".parse::<u8>()).await;
    /// assert!(failed.is_err());
    /// assert_eq!(cell.get_or_try_init(async || "7".parse::<u8>()).await, Ok(&7));
    /// # });
    /// ```
    pub async fn get_or_try_init<E, F, Fut>(&self, make: F) -> Result<&T, E>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        super::proceed().await;
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let _init_lock = self.init_lock.lock().await;
        if let Some(value) = self.get() {
            return Ok(value);
        }
        Ok(self.fill(make().await?))
    }
}

macro_rules! cell_traits {
    ($cell:ident) => {
        impl<T> Default for $cell<T> {
            fn default() -> $cell<T> {
                $cell::new()
            }
        }

        impl<T> From<T> for $cell<T> {
            fn from(value: T) -> $cell<T> {
                $cell::const_new_with(value)
            }
        }

        impl<T: Clone> Clone for $cell<T> {
            fn clone(&self) -> $cell<T> {
                $cell::new_with(self.get().cloned())
            }
        }

        impl<T: PartialEq> PartialEq for $cell<T> {
            fn eq(&self, other: &$cell<T>) -> bool {
                self.get() == other.get()
            }
        }

        impl<T: Eq> Eq for $cell<T> {}

        impl<T: fmt::Debug> fmt::Debug for $cell<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($cell))
                    .field("value", &self.get())
                    .finish()
            }
        }
    };
}
pub(super) use cell_traits;

cell_traits!(OnceCell);

/// The error of [`OnceCell::set`], with the rejected value.
///
/// ```
/// use upshift::sync::{OnceCell, SetError};
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let cell = OnceCell::new();
/// let make = async || {
///     assert_eq!(cell.set(1), Err(SetError::InitializingError(1)));
///     2
/// };
/// assert_eq!(*cell.get_or_init(make).await, 2);
/// assert_eq!(cell.set(3), Err(SetError::AlreadyInitializedError(3)));
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetError<T> {
    /// The cell has a value.
    AlreadyInitializedError(T),
    /// Another coroutine or thread is making the value.
    InitializingError(T),
}

impl<T> SetError<T> {
    /// Returns true if the cell has a value.
    #[must_use]
    pub fn is_already_init_err(&self) -> bool {
        matches!(self, SetError::AlreadyInitializedError(_))
    }

    /// Returns true if another coroutine or thread is making the value.
    #[must_use]
    pub fn is_initializing_err(&self) -> bool {
        matches!(self, SetError::InitializingError(_))
    }
}

impl<T> fmt::Display for SetError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SetError::AlreadyInitializedError(_) => "the cell has a value: use `get`",
            SetError::InitializingError(_) => "a value is being made: wait with `get_or_init`",
        })
    }
}

impl<T: fmt::Debug> Error for SetError<T> {}
