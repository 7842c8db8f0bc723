//! Owned buffers that operations can carry.
//!
//! A buffer moves into the operation and comes back with the result. While the operation is in
//! flight the buffer stays at its address, inside the operation, so even inline arrays work. If the
//! handle is dropped before the operation completes, the thread that serves the ring drops the
//! buffer; therefore buffers are `Send`.

use crate::recv::RecvBuf;
use std::ops::Range;
use std::sync::Arc;

/// A buffer of bytes to be written or sent.
///
/// # Safety
///
/// While `self` is neither moved nor changed, [`io_ptr`](Self::io_ptr) returns the same pointer,
/// valid for reading [`io_len`](Self::io_len) initialised bytes from any thread.
#[diagnostic::on_unimplemented(
    message = "this call takes a buffer that it owns, and `{Self}` is not one",
    label = "the kernel may read the buffer after the future is dropped, so it cannot be borrowed",
    note = "pass a `Vec<u8>`, `String`, `Box<[u8]>`, `Arc<[u8]>`, array or `&'static [u8]`; it comes back with the result: `let (result, buffer) = stream.write_all(buffer).await`",
    note = "to write borrowed bytes as with tokio, name the trait: `upshift::io::AsyncWriteExt::write_all(&mut stream, &bytes).await`"
)]
pub unsafe trait IoBuf: Send + 'static {
    /// Whether dropping the buffer may run user code; see
    /// [`Operation::DROP_RUNS_USER_CODE`](crate::Operation::DROP_RUNS_USER_CODE).
    const DROP_RUNS_USER_CODE: bool = true;

    /// Returns a pointer to the first byte.
    fn io_ptr(&self) -> *const u8;

    /// Returns the number of initialised bytes.
    fn io_len(&self) -> usize;

    /// Returns a part of the buffer, such as the rest after a short write.
    ///
    /// ```
    /// # use upshift_ring::IoBuf;
    /// let rest = "hello".slice(2..5);
    /// assert_eq!(rest.io_len(), 3);
    /// ```
    ///
    /// # Panics
    ///
    /// If the range is not within the initialised bytes.
    fn slice(self, range: Range<usize>) -> Slice<Self>
    where
        Self: Sized,
    {
        assert!(
            range.start <= range.end && range.end <= self.io_len(),
            "the range must lie within the buffer's initialised bytes"
        );
        Slice {
            buffer: self,
            start: range.start,
            end: range.end,
        }
    }
}

/// A buffer with room for bytes to be read or received.
///
/// # Safety
///
/// While `self` is not moved, [`io_mut_ptr`](Self::io_mut_ptr) returns the same pointer, valid for
/// writing [`io_capacity`](Self::io_capacity) bytes from any thread.
#[diagnostic::on_unimplemented(
    message = "this call takes a buffer that it owns, and `{Self}` is not one",
    label = "the kernel may fill the buffer after the future is dropped, so it cannot be borrowed",
    note = "pass a `Vec<u8>` (its capacity is the room), `Box<[u8]>` or array; it comes back with the result: `let (result, buffer) = stream.read(buffer).await`",
    note = "to read into borrowed memory as with tokio, name the trait: `upshift::io::AsyncReadExt::read(&mut stream, &mut bytes).await`"
)]
pub unsafe trait IoBufMut: Send + 'static {
    /// Whether dropping the buffer may run user code; see
    /// [`Operation::DROP_RUNS_USER_CODE`](crate::Operation::DROP_RUNS_USER_CODE).
    const DROP_RUNS_USER_CODE: bool = true;

    /// Returns a pointer to the first byte.
    fn io_mut_ptr(&mut self) -> *mut u8;

    /// Returns the capacity in bytes, initialised or not. A read overwrites the buffer from its
    /// first byte on.
    fn io_capacity(&self) -> usize;

    /// Records that `count` bytes have been read. A `Vec` gets that length; a boxed slice keeps
    /// its length.
    ///
    /// # Safety
    ///
    /// The first `count` bytes are initialised, and `count` is at most
    /// [`io_capacity`](Self::io_capacity).
    unsafe fn set_filled(&mut self, count: usize);
}

// SAFETY: moving a vector does not move its heap memory.
unsafe impl IoBuf for Vec<u8> {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn io_len(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above, up to the capacity.
unsafe impl IoBufMut for Vec<u8> {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn io_capacity(&self) -> usize {
        self.capacity()
    }
    unsafe fn set_filled(&mut self, count: usize) {
        // SAFETY: the caller upholds the requirements of this call.
        unsafe { self.set_len(count) };
    }
}

// SAFETY: moving a box does not move its heap memory.
unsafe impl IoBufMut for Box<[u8]> {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn io_capacity(&self) -> usize {
        self.len()
    }
    unsafe fn set_filled(&mut self, _count: usize) {}
}

macro_rules! bytes {
    ($($type:ty),*) => { $(
        // SAFETY: the bytes are immutable, and stay at their address while the owner is not moved.
        unsafe impl IoBuf for $type {
            const DROP_RUNS_USER_CODE: bool = false;

            fn io_ptr(&self) -> *const u8 {
                self.as_ptr()
            }
            fn io_len(&self) -> usize {
                self.len()
            }
        }
    )* };
}

bytes!(
    Box<[u8]>,
    &'static [u8],
    &'static str,
    String,
    Arc<[u8]>,
    RecvBuf
);

// SAFETY: the bytes lie inside the array, so they do not move while the array does not.
unsafe impl<const N: usize> IoBuf for [u8; N] {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_ptr(&self) -> *const u8 {
        self.as_ptr()
    }
    fn io_len(&self) -> usize {
        N
    }
}

// SAFETY: as above.
unsafe impl<const N: usize> IoBufMut for [u8; N] {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
    fn io_capacity(&self) -> usize {
        N
    }
    unsafe fn set_filled(&mut self, _count: usize) {}
}

/// A part of a buffer; made by [`IoBuf::slice`].
#[derive(Debug)]
pub struct Slice<B> {
    buffer: B,
    start: usize,
    end: usize,
}

impl<B> Slice<B> {
    /// Returns the whole buffer.
    pub fn into_inner(self) -> B {
        self.buffer
    }
}

impl<B: IoBuf + Clone> Clone for Slice<B> {
    /// # Panics
    ///
    /// If the clone of the buffer ends before the range.
    fn clone(&self) -> Self {
        self.buffer.clone().slice(self.start..self.end)
    }
}

impl<B: IoBuf + Copy> Copy for Slice<B> {}

// SAFETY: `B` guarantees its memory, and the range lies within the initialised bytes.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    const DROP_RUNS_USER_CODE: bool = B::DROP_RUNS_USER_CODE;

    fn io_ptr(&self) -> *const u8 {
        // SAFETY: `start` is within the initialised bytes, so the sum stays within the buffer.
        unsafe { self.buffer.io_ptr().add(self.start) }
    }
    fn io_len(&self) -> usize {
        self.end - self.start
    }
}

/// Maximum number of bytes that one call of the kernel transfers (MAX_RW_COUNT). Of a longer buffer
/// only the first part is read or written.
const MAX_TRANSFER: usize = 0x7fff_f000;

/// Converts the length of a buffer to the type of an entry's field, and limits it to
/// [`MAX_TRANSFER`].
pub(crate) fn clamp(length: usize) -> u32 {
    length.min(MAX_TRANSFER) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A buffer whose clones are shorter than the original, as the contract of `IoBuf` allows.
    #[derive(Debug)]
    struct ShrinkingBuffer(Vec<u8>);

    impl Clone for ShrinkingBuffer {
        fn clone(&self) -> Self {
            Self(Vec::new())
        }
    }

    // SAFETY: forwarded to the vector.
    unsafe impl IoBuf for ShrinkingBuffer {
        fn io_ptr(&self) -> *const u8 {
            self.0.io_ptr()
        }
        fn io_len(&self) -> usize {
            self.0.io_len()
        }
    }

    #[test]
    #[should_panic(expected = "within the buffer")]
    fn cloning_a_part_panics_if_the_clone_of_the_whole_is_too_short() {
        let part = ShrinkingBuffer(vec![7; 100]).slice(10..90);
        let clone = part.clone();
        assert!(clone.io_len() <= clone.into_inner().io_len());
    }

    #[test]
    fn a_part_is_cloned_and_copied() {
        let part = vec![1, 2, 3].slice(1..3);
        assert_eq!(part.clone().io_len(), 2);
        let copied = [1, 2, 3].slice(1..3);
        let copy = copied;
        assert_eq!((copy.io_len(), copied.io_len()), (2, 2));
    }
}
