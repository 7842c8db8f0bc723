//! The trait [`Operation`], and the table of functions through which the ring handles operations
//! whose type has been erased.

use io_uring::squeue::Entry;
use std::marker::PhantomData;

/// Size in bytes of a slot's payload, which is also its alignment. An operation that does not fit
/// is boxed.
pub(crate) const PAYLOAD_BYTES: usize = 64;

/// A request to the kernel, with all the memory and descriptors that it refers to.
///
/// The ring moves the operation to its final address (in a slot, or in a box if it is larger than
/// 64 bytes), calls [`entry`](Self::entry) there once, and does not touch it until the terminal
/// completion. Then it moves the operation out and calls [`complete`](Self::complete) with the
/// kernel's result. The thread that polls the handle does this, or the ring's thread if the handle
/// is gone. So a resource in the result (a descriptor) is released in either case.
///
/// # Safety
///
/// Every pointer in the entry must stay valid for the kernel's use of it while the value stays at
/// its address, until the terminal completion. The value must own (not borrow) the memory and
/// descriptors that the entry refers to. The flags of the entry must not make the kernel skip the
/// completion, and the entry must complete once. The ring sets `user_data`.
pub unsafe trait Operation: Sized + Send + 'static {
    /// The output of the handle.
    type Output;

    /// Whether dropping the operation or its output may run user code. If so, a ring that [defers
    /// user code](crate::Ring::defer_user_code) leaves the drop to the runtime.
    const DROP_RUNS_USER_CODE: bool = true;

    /// Returns the number of bytes that a kernel thread copies for the operation, in competition
    /// with the ring's thread for its CPU: the bytes of a write to the page cache. While a more
    /// urgent operation is in flight, few such copies are handed over at a time.
    #[inline]
    fn copied_bytes(&self) -> u32 {
        0
    }

    /// Describes the request. Called once the value has its final address. Must not panic.
    fn entry(&mut self) -> Entry;

    /// Turns the kernel's result into the output. A negative result is a negated errno.
    fn complete(self, result: i32, flags: u32) -> Self::Output;
}

/// The functions of an operation of erased type. Each takes the payload of the slot.
pub(crate) struct Table {
    pub(crate) entry: unsafe fn(*mut u8) -> Entry,
    pub(crate) dispose: unsafe fn(*mut u8, i32, u32),
    /// Moves the operation out. Dropping the returned value disposes of the output.
    pub(crate) take: unsafe fn(*mut u8, i32, u32) -> Box<dyn Send>,
    pub(crate) drop_runs_user_code: bool,
}

impl Table {
    pub(crate) const NONE: &'static Table = &Table {
        entry: |_| io_uring::opcode::Nop::new().build(),
        dispose: |_, _, _| {},
        take: |_, _, _| Box::new(()),
        drop_runs_user_code: false,
    };
}

/// A completed operation; dropping it disposes of its output.
struct Complete<T: Operation> {
    operation: Option<T>,
    result: i32,
    flags: u32,
}

impl<T: Operation> Drop for Complete<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            drop(operation.complete(self.result, self.flags));
        }
    }
}

/// The layout of a value of type `T` in a payload.
pub(crate) struct Stored<T>(PhantomData<T>);

impl<T: Operation> Stored<T> {
    const IS_INLINE: bool = size_of::<T>() <= PAYLOAD_BYTES && align_of::<T>() <= PAYLOAD_BYTES;

    pub(crate) const TABLE: &'static Table = &Table {
        entry: |payload| {
            // SAFETY: `value_ptr` requires a stored `T`; the ring calls this only while the payload
            // holds one.
            unsafe { (*Self::value_ptr(payload)).entry() }
        },
        dispose: |payload, result, flags| {
            // SAFETY: the payload holds a `T`, which the ring takes once, by this call, after the
            // terminal completion.
            drop(unsafe { Self::take(payload) }.complete(result, flags));
        },
        take: |payload, result, flags| {
            Box::new(Complete {
                // SAFETY: as above.
                operation: Some(unsafe { Self::take(payload) }),
                result,
                flags,
            })
        },
        drop_runs_user_code: T::DROP_RUNS_USER_CODE,
    };

    /// Stores a value.
    ///
    /// # Safety
    /// `payload` points to a free payload.
    #[inline]
    pub(crate) unsafe fn put(payload: *mut u8, value: T) {
        // SAFETY: the payload is free, and large and aligned enough for the value (IS_INLINE) or
        // for a pointer.
        unsafe {
            if Self::IS_INLINE {
                payload.cast::<T>().write(value);
            } else {
                payload
                    .cast::<*mut T>()
                    .write(Box::into_raw(Box::new(value)));
            }
        }
    }

    /// Returns the address of the stored value.
    ///
    /// # Safety
    /// `payload` holds a `T` put there by [`put`](Self::put).
    #[inline]
    pub(crate) unsafe fn value_ptr(payload: *mut u8) -> *mut T {
        if Self::IS_INLINE {
            payload.cast()
        } else {
            // SAFETY: the payload holds the pointer that `put` stored.
            unsafe { payload.cast::<*mut T>().read() }
        }
    }

    /// Moves the value out.
    ///
    /// # Safety
    /// As for [`value_ptr`](Self::value_ptr); the payload is free afterwards.
    #[inline]
    pub(crate) unsafe fn take(payload: *mut u8) -> T {
        // SAFETY: the caller upholds the requirements of this call.
        unsafe {
            if Self::IS_INLINE {
                payload.cast::<T>().read()
            } else {
                *Box::from_raw(payload.cast::<*mut T>().read())
            }
        }
    }
}
