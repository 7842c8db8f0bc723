//! Bounded channels of pointers.

use std::ffi::{c_int, c_void};

use upshift::sync::mpsc::{self, Receiver, Sender, TryRecvError, TrySendError};

use crate::cx::upshift_cx;
use crate::error::{catch_panic, catch_panic_code, errno, free};
use crate::exclusive::{Exclusive, WithUse, begin_use};
use crate::op::{Outcome, finish, start, upshift_op};

/// A message. If it is never received, the channel's `drop` function destroys it.
struct Message {
    data: *mut c_void,
    drop: Option<unsafe extern "C" fn(data: *mut c_void)>,
}

// SAFETY: the caller of `upshift_channel` guarantees that messages may move between threads.
unsafe impl Send for Message {}

impl Message {
    fn into_data(self) -> *mut c_void {
        std::mem::ManuallyDrop::new(self).data
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: the caller of `upshift_channel` guarantees that the function accepts the
            // message. It is called once for each message.
            unsafe { drop(self.data) };
        }
    }
}

/// The sending side of a channel. It may be used on any thread, and on several threads at the same
/// time. The caller must not free it before all operations on it have ended. Another owner needs a
/// clone.
pub struct upshift_sender {
    sender: Sender<Message>,
    drop: Option<unsafe extern "C" fn(data: *mut c_void)>,
}

/// The receiving side of a channel. It may be used on any thread, but not on several threads at the
/// same time. Only one operation at a time may use it: a second operation fails with -EBUSY.
pub struct upshift_receiver {
    _private: [u8; 0],
}

/// Creates a channel for `capacity` messages. `drop` destroys messages that are never received, on
/// any thread. It may be null. Messages must be able to move between threads. Returns 0, or -EINVAL
/// if `capacity` is 0, or if `sender` or `receiver` is null. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_channel(
    capacity: usize,
    drop: Option<unsafe extern "C" fn(data: *mut c_void)>,
    sender: *mut *mut upshift_sender,
    receiver: *mut *mut upshift_receiver,
) -> c_int {
    catch_panic_code(|| {
        if capacity == 0 || sender.is_null() || receiver.is_null() {
            return -libc::EINVAL;
        }
        let (message_sender, message_receiver) = mpsc::channel(capacity);
        let new_sender = upshift_sender {
            sender: message_sender,
            drop,
        };
        // SAFETY: neither pointer is null, so the caller guarantees that both have room for a
        // pointer.
        unsafe {
            sender.write(Box::into_raw(Box::new(new_sender)));
            receiver.write(Exclusive::new_raw(message_receiver, -1).cast());
        }
        0
    })
}

/// Clones a sender. Returns null if `sender` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_sender_clone(
    sender: *const upshift_sender,
) -> *mut upshift_sender {
    // SAFETY: the caller guarantees that `sender` is null or valid.
    let Some(sender) = (unsafe { sender.as_ref() }) else {
        return std::ptr::null_mut();
    };
    Box::into_raw(Box::new(upshift_sender {
        sender: sender.sender.clone(),
        drop: sender.drop,
    }))
}

/// Frees a sender. When all senders have been freed, the channel ends as soon as it is empty. Does
/// nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_sender_free(sender: *mut upshift_sender) {
    // SAFETY: the caller guarantees that the pointer is null or its own sender, which it frees
    // once.
    unsafe { free(sender) };
}

/// Frees the receiver and ends the channel, whose remaining messages are destroyed. If an operation
/// waits for a message, this happens when the operation ends. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_receiver_free(receiver: *mut upshift_receiver) {
    if !receiver.is_null() {
        // SAFETY: `receiver` is not null, so the caller guarantees that it is its own receiver,
        // which it frees once.
        catch_panic(|| unsafe { Exclusive::<Receiver<Message>>::free(receiver.cast()) });
    }
}

impl Outcome for Result<(), mpsc::SendError<Message>> {
    #[inline]
    fn store(self, op: &mut upshift_op) {
        op.result = match self {
            Ok(()) => 0,
            Err(error) => {
                op.out.handles = [error.0.into_data(), std::ptr::null_mut()];
                -i64::from(libc::EPIPE)
            }
        };
    }
}

/// A message that was sent without a sender.
struct UnsentMessage(*mut c_void);

impl Outcome for UnsentMessage {
    fn store(self, op: &mut upshift_op) {
        op.result = -i64::from(libc::EINVAL);
        op.out.handles = [self.0, std::ptr::null_mut()];
    }
}

impl Outcome for Option<Message> {
    #[inline]
    fn store(self, op: &mut upshift_op) {
        op.result = i64::from(self.is_some());
        if let Some(message) = self {
            op.out.handles = [message.into_data(), std::ptr::null_mut()];
        }
    }
}

/// Waits for room and sends a message, which the channel owns from the call on. The result is 0 on
/// success, -EPIPE if the receiver is gone, or -EINVAL if `sender` is null. With either error the
/// message is returned in `out.handles[0]`. If the operation is dropped before it is ready, the
/// message is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_send(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    sender: *const upshift_sender,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees that `sender` is null or outlives the operation.
    let Some(sender): Option<&'static upshift_sender> = (unsafe { sender.as_ref() }) else {
        // SAFETY: the caller guarantees that `op` is null or has room for an operation.
        return unsafe { finish(op, UnsentMessage(data)) };
    };
    let message = Message {
        data,
        drop: sender.drop,
    };
    // SAFETY: the caller guarantees that `op` is null or has room for an operation, and that `cx`
    // is null or belongs to the current poll.
    unsafe { start(op, cx, sender.sender.send(message)) }
}

/// Sends a message without waiting. Returns 0, -EAGAIN if the channel is full, -EPIPE if the
/// receiver is gone, or -EINVAL if `sender` is null. After an error the caller still owns the
/// message. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_try_send(
    sender: *const upshift_sender,
    data: *mut c_void,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: the caller guarantees that `sender` is null or valid.
        let Some(sender) = (unsafe { sender.as_ref() }) else {
            return -libc::EINVAL;
        };
        let message = Message {
            data,
            drop: sender.drop,
        };
        match sender.sender.try_send(message) {
            Ok(()) => 0,
            Err(TrySendError::Full(message)) => {
                message.into_data();
                -libc::EAGAIN
            }
            Err(TrySendError::Closed(message)) => {
                message.into_data();
                -libc::EPIPE
            }
        }
    })
}

/// Waits for a message. The result is 1 if there is a message, which is returned in
/// `out.handles[0]`, 0 if the channel has ended, -EBUSY if another operation waits for a message,
/// or -EINVAL if `receiver` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_receive(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    receiver: *mut upshift_receiver,
) -> c_int {
    let receiver = receiver.cast::<Exclusive<Receiver<Message>>>();
    // SAFETY: the caller guarantees that `receiver` is null or has not been freed, that `op` is
    // null or has room for an operation, and that `cx` is null or belongs to the current poll.
    // `WithUse` drops the future before its exclusive use ends.
    unsafe {
        match begin_use(receiver) {
            Ok(mut exclusive_use) => start(
                op,
                cx,
                WithUse::new(exclusive_use.lend().recv(), exclusive_use),
            ),
            Err(error) => finish(op, Err::<(), _>(error)),
        }
    }
}

/// Receives the next message without waiting. Returns 1 and stores the message in `*data`, or
/// returns 0 if the channel has ended, -EAGAIN if it is empty, -EBUSY if an operation waits for a
/// message, or -EINVAL if `receiver` or `data` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_try_receive(
    receiver: *mut upshift_receiver,
    data: *mut *mut c_void,
) -> c_int {
    catch_panic_code(|| {
        if data.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: the caller guarantees that `receiver` is null or has not been freed.
        let mut exclusive_use =
            match unsafe { begin_use(receiver.cast::<Exclusive<Receiver<Message>>>()) } {
                Ok(exclusive_use) => exclusive_use,
                Err(error) => return errno(&error),
            };
        match exclusive_use.try_recv() {
            Ok(message) => {
                // SAFETY: `data` is not null, so the caller guarantees that it has room for a
                // pointer.
                unsafe { data.write(message.into_data()) };
                1
            }
            Err(TryRecvError::Empty) => -libc::EAGAIN,
            Err(TryRecvError::Disconnected) => 0,
        }
    })
}
