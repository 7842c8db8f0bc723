//! Bounded channels of pointers.

use std::ffi::{c_int, c_void};

use upshift::sync::mpsc::{self, Receiver, Sender, TryRecvError, TrySendError};

use crate::cx::upshift_cx;
use crate::error::{catch_panic, catch_panic_code, errno, free};
use crate::exclusive::{Exclusive, WithUse, begin_use};
use crate::op::{Outcome, finish, start, upshift_op};

/// A message. If it is not received, the channel's function destroys it.
struct Message {
    data: *mut c_void,
    drop: Option<unsafe extern "C" fn(data: *mut c_void)>,
}

// SAFETY: the contract of `upshift_channel` lets messages move between threads.
unsafe impl Send for Message {}

impl Message {
    fn into_data(self) -> *mut c_void {
        std::mem::ManuallyDrop::new(self).data
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: by contract the function accepts the message, and it is called once for it.
            unsafe { drop(self.data) };
        }
    }
}

/// The sending side of a channel. Any thread, several at once; clone it for another owner.
pub struct upshift_sender {
    sender: Sender<Message>,
    drop: Option<unsafe extern "C" fn(data: *mut c_void)>,
}

/// The receiving side of a channel. One thread at a time.
pub struct upshift_receiver {
    _private: [u8; 0],
}

/// Creates a channel for `capacity` messages. `drop` destroys messages that are never received; it
/// may be null. Messages move from thread to thread. Returns 0, or -EINVAL for a capacity of 0 or a
/// null pointer.
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
        let (send, receive) = mpsc::channel(capacity);
        let send = upshift_sender { sender: send, drop };
        // SAFETY: by contract `sender` and `receiver` have room for a pointer.
        unsafe {
            sender.write(Box::into_raw(Box::new(send)));
            receiver.write(Exclusive::new_raw(receive).cast());
        }
        0
    })
}

/// Clones a sender; null for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_sender_clone(
    sender: *const upshift_sender,
) -> *mut upshift_sender {
    // SAFETY: by contract the pointer is null or valid.
    let Some(sender) = (unsafe { sender.as_ref() }) else {
        return std::ptr::null_mut();
    };
    Box::into_raw(Box::new(upshift_sender {
        sender: sender.sender.clone(),
        drop: sender.drop,
    }))
}

/// Frees a sender. Without senders, the channel ends when it is empty. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_sender_free(sender: *mut upshift_sender) {
    // SAFETY: the caller owns the sender and gives it away once.
    unsafe { free(sender) };
}

/// Frees the receiver, after its pending operation, and ends the channel; messages inside are
/// dropped. Does nothing for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_receiver_free(receiver: *mut upshift_receiver) {
    if !receiver.is_null() {
        // SAFETY: the caller owns the receiver and gives it away once.
        catch_panic(|| unsafe { Exclusive::<Receiver<Message>>::free(receiver.cast()) });
    }
}

impl Outcome for Result<(), mpsc::SendError<Message>> {
    #[inline]
    fn store(self, op: &mut upshift_op) {
        op.result = match self {
            Ok(()) => 0,
            Err(refused) => {
                op.out.handles = [refused.0.into_data(), std::ptr::null_mut()];
                -i64::from(libc::EPIPE)
            }
        };
    }
}

/// A message that the channel did not accept.
struct Refused(*mut c_void);

impl Outcome for Refused {
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

/// Waits for room and sends a message, which the channel owns from the call on. The result is 0,
/// -EPIPE if the receiver is gone, or -EINVAL if `sender` is null; with either error the message is
/// in `out.handles[0]`. Dropping the operation earlier drops the message, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_send(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    sender: *const upshift_sender,
    data: *mut c_void,
) -> c_int {
    // SAFETY: by contract the pointer is null, or the sender outlives the operation.
    let Some(sender): Option<&'static upshift_sender> = (unsafe { sender.as_ref() }) else {
        // SAFETY: the caller upholds the requirements of this call.
        return unsafe { finish(op, Refused(data)) };
    };
    let message = Message {
        data,
        drop: sender.drop,
    };
    // SAFETY: by contract `op` has room, and `cx` belongs to the current poll.
    unsafe { start(op, cx, sender.sender.send(message)) }
}

/// Sends a message without waiting. Returns 0, -EAGAIN (no room), -EPIPE (the receiver is gone), or
/// -EINVAL (null). On an error the caller still owns the message. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_try_send(
    sender: *const upshift_sender,
    data: *mut c_void,
) -> c_int {
    catch_panic_code(|| {
        // SAFETY: by contract the pointer is null or valid.
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

/// Waits for a message. The result is 1, and `out.handles[0]` is the message; 0 if the channel has
/// ended; -EBUSY if another operation waits; -EINVAL for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_receive(
    op: *mut upshift_op,
    cx: *mut upshift_cx,
    receiver: *mut upshift_receiver,
) -> c_int {
    let receiver = receiver.cast::<Exclusive<Receiver<Message>>>();
    // SAFETY: by contract the receiver and `op` are valid; the future is dropped before
    // its exclusive use ends.
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

/// Receives the next message without waiting. Returns 1, with the message in `*data`; 0 if the
/// channel has ended; -EAGAIN if it is empty; -EBUSY if an operation waits for a message; -EINVAL
/// for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_try_receive(
    receiver: *mut upshift_receiver,
    data: *mut *mut c_void,
) -> c_int {
    catch_panic_code(|| {
        if data.is_null() {
            return -libc::EINVAL;
        }
        // SAFETY: by contract the receiver is null, or has not been freed.
        let mut exclusive_use =
            match unsafe { begin_use(receiver.cast::<Exclusive<Receiver<Message>>>()) } {
                Ok(exclusive_use) => exclusive_use,
                Err(error) => return errno(&error),
            };
        match exclusive_use.try_recv() {
            Ok(message) => {
                // SAFETY: by contract `data` has room for a pointer.
                unsafe { data.write(message.into_data()) };
                1
            }
            Err(TryRecvError::Empty) => -libc::EAGAIN,
            Err(TryRecvError::Disconnected) => 0,
        }
    })
}
