//! Buffers that operations own and return, and receive buffers of the runtime.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr::{null, null_mut};

use upshift::RecvBuf;
use upshift_ring::{IoBuf, IoBufMut};

use crate::error::catch_panic;

/// A buffer of the caller. An operation owns it from its start to its end, and returns it with the
/// result. If the operation is dropped, `release` is called when the kernel no longer uses the
/// buffer: at once on the calling thread, or later on a thread of the runtime, in a coroutine or
/// while the runtime shuts down. Until then `data` must be valid for `capacity` bytes, on any
/// thread. If `data` is null but `capacity` is not 0, or if `len` exceeds `capacity`, the result is
/// -EINVAL.
#[repr(C)]
pub struct upshift_buf {
    /// The first byte.
    pub data: *mut u8,
    /// Number of initialised bytes, which a write sends.
    pub len: usize,
    /// Number of bytes that a read may fill.
    pub capacity: usize,
    /// Frees `data`. It may be null for bytes that need not be freed, which must be valid until the
    /// end of the process.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void, data: *mut u8, capacity: usize)>,
    /// Argument of `release`.
    pub context: *mut c_void,
}

/// An [`upshift_buf`] that belongs to an operation.
pub(crate) struct Buf(upshift_buf);

// SAFETY: the caller of the ABI guarantees that any thread may use and release the buffer.
unsafe impl Send for Buf {}

impl Buf {
    /// Checks the buffer of a call. Returns the buffer as an error, to be given back, if its bytes
    /// are null or exceed the capacity, or if the caller passed no buffer.
    ///
    /// # Safety
    /// `buf` is null, or points to a buffer that fulfils the contract of [`upshift_buf`] and that
    /// is given away.
    #[inline]
    pub(crate) unsafe fn from_caller(buf: *const upshift_buf) -> Result<Buf, Buf> {
        if buf.is_null() {
            return Err(Buf(upshift_buf {
                data: null_mut(),
                len: 0,
                capacity: 0,
                release: None,
                context: null_mut(),
            }));
        }
        // SAFETY: `buf` is not null, so the caller guarantees that it is valid and gives its buffer
        // away.
        let buf = Buf(unsafe { buf.read() });
        if buf.0.len > buf.0.capacity || (buf.0.data.is_null() && buf.0.capacity != 0) {
            return Err(buf);
        }
        Ok(buf)
    }

    /// Returns the buffer to the caller.
    #[inline]
    pub(crate) fn into_raw(self) -> upshift_buf {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the reference is valid, and the value is moved out once, because the wrapper is
        // never dropped.
        unsafe { std::ptr::read(&this.0) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the caller of the ABI guarantees that `release` accepts these arguments. It
            // is called once.
            unsafe { release(self.0.context, self.0.data, self.0.capacity) };
        }
    }
}

// SAFETY: the caller of the ABI guarantees that the bytes do not move, and that any thread may read
// them.
unsafe impl IoBuf for Buf {
    #[inline]
    fn io_ptr(&self) -> *const u8 {
        if self.0.data.is_null() {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        self.0.data
    }
    #[inline]
    fn io_len(&self) -> usize {
        self.0.len
    }
}

// SAFETY: the caller of the ABI guarantees that the bytes do not move, and that any thread may
// write to them.
unsafe impl IoBufMut for Buf {
    #[inline]
    fn io_mut_ptr(&mut self) -> *mut u8 {
        if self.0.data.is_null() {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        self.0.data
    }
    #[inline]
    fn io_capacity(&self) -> usize {
        self.0.capacity
    }
    #[inline]
    unsafe fn set_filled(&mut self, count: usize) {
        self.0.len = count;
    }
}

/// Received bytes, in a buffer of the runtime. The holder owns the bytes, returns the buffer with
/// `upshift_bytes_free`, and should do so soon, because the number of buffers is limited. The bytes
/// may be used on any thread. The holder may move the struct by copying its words. If all words are
/// 0, there are no bytes and nothing to free.
#[repr(C)]
pub struct upshift_bytes {
    /// The first byte.
    pub data: *const u8,
    /// Number of bytes, or 0 if the peer has ended its direction.
    pub len: usize,
    owner: [usize; 6],
}

const _: () = assert!(size_of::<RecvBuf>() <= size_of::<[usize; 6]>());

impl upshift_bytes {
    #[inline]
    pub(crate) fn new(buffer: RecvBuf) -> upshift_bytes {
        let mut bytes = upshift_bytes {
            data: buffer.as_ptr(),
            len: buffer.len(),
            owner: [0; 6],
        };
        // SAFETY: the pointer is valid for writing the buffer, for which `owner` has room.
        unsafe { bytes.owner.as_mut_ptr().cast::<RecvBuf>().write(buffer) };
        bytes
    }

    pub(crate) const fn none() -> upshift_bytes {
        upshift_bytes {
            data: null(),
            len: 0,
            owner: [0; 6],
        }
    }

    /// Returns the buffer, or an empty buffer if all words are 0.
    pub(crate) fn into_inner(self) -> RecvBuf {
        if self.data.is_null() {
            return RecvBuf::empty();
        }
        // SAFETY: `new` has stored the buffer, and it is taken once.
        unsafe { self.owner.as_ptr().cast::<RecvBuf>().read() }
    }
}

/// Frees received bytes and sets all words to 0. Does nothing for null. May be called on any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_bytes_free(bytes: *mut upshift_bytes) {
    if !bytes.is_null() {
        // SAFETY: `bytes` is not null, so the caller guarantees that it is valid and that the bytes
        // belong to the caller.
        catch_panic(|| drop(unsafe { bytes.replace(upshift_bytes::none()) }.into_inner()));
    }
}

/// Returns true if the pointer fits the length: it is not null, or the length is 0.
#[inline]
pub(crate) fn is_valid_slice(data: *const u8, len: usize) -> bool {
    !data.is_null() || len == 0
}

/// Borrows the caller's memory. Returns an empty slice if `len` is 0.
///
/// # Safety
/// The `len` bytes are readable for the whole lifetime.
#[inline]
pub(crate) unsafe fn borrow_slice<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees that the `len` bytes are readable for the whole lifetime.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// Borrows the caller's memory for writing, like [`borrow_slice`].
///
/// # Safety
/// The `len` bytes are readable and writable for the whole lifetime, in which no other code uses
/// them.
#[inline]
pub(crate) unsafe fn borrow_slice_mut<'a>(data: *mut u8, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller guarantees that the `len` bytes are writable for the whole lifetime, and
    // that no other code uses them.
    unsafe { std::slice::from_raw_parts_mut(data, len) }
}

unsafe extern "C" fn free_allocated(_: *mut c_void, data: *mut u8, _: usize) {
    // SAFETY: `upshift_buf_alloc` got the memory from `malloc`, and it is released once.
    unsafe { libc::free(data.cast()) };
}

/// Allocates a buffer of `capacity` bytes with `malloc`, and stores it in `*buf`. Returns 0,
/// -ENOMEM, or -EINVAL if `buf` is null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_buf_alloc(capacity: usize, buf: *mut upshift_buf) -> c_int {
    if buf.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the call has no preconditions, because `malloc` accepts any size.
    let data = unsafe { libc::malloc(capacity.max(1)) }.cast::<u8>();
    if data.is_null() {
        return -libc::ENOMEM;
    }
    let buffer = upshift_buf {
        data,
        len: 0,
        capacity,
        release: Some(free_allocated),
        context: null_mut(),
    };
    // SAFETY: `buf` is not null, so the caller guarantees that it has room for a buffer.
    unsafe { buf.write(buffer) };
    0
}
