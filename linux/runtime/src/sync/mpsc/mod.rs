//! Channels with many senders and one receiver.
//!
//! | | bounded: [`channel`] | unbounded: [`unbounded_channel`] |
//! |---|---|---|
//! | when full | `send` waits, `try_send` fails | never full: memory grows instead |
//! | room goes to | the most urgent waiting sender | |
//! | memory | a ring buffer, reused | the same; grows by doubling, shrinks when emptied |
//!
//! Messages arrive in the order in which they were put in. The receiver gets every
//! message sent before the last sender was dropped, then `None`; senders get their
//! value back once the receiver is closed or dropped.
//!
//! Room can be reserved before there is a message: [`Sender::reserve`]. The holder of a
//! [`Permit`] may use the permit even after the receiver was closed. The receiver returns `None`
//! only after every permit has been used or dropped.
//!
//! A message costs the sender and the receiver one short lock each, and a wake if the receiver
//! waited; nothing is allocated per message.
//!
//! ```
//! use upshift::{Priority, sync::mpsc};
//!
//! upshift::Runtime::new()?.block_on(async {
//!     let (sender, mut receiver) = mpsc::channel(16);
//!     for n in 0..3 {
//!         let sender = sender.clone();
//!         upshift::spawn(
//!             async move { sender.send(n).await.unwrap() },
//!             Priority::Inherit,
//!         )
//!         .detach();
//!     }
//!     drop(sender);
//!     let mut sum = 0;
//!     while let Some(n) = receiver.recv().await {
//!         sum += n;
//!     }
//!     assert_eq!(sum, 3);
//! });
//! # Ok::<(), std::io::Error>(())
//! ```

mod bounded;
mod chan;
pub mod error;
mod permit;
mod receiving;
mod sending;
mod unbounded;
mod weak;

pub use bounded::{Receiver, Recv, SendFuture, Sender, channel};
pub use error::{SendError, SendTimeoutError, TryRecvError, TrySendError};
pub use permit::{OwnedPermit, Permit, PermitIterator, Reserve};
pub use unbounded::{UnboundedReceiver, UnboundedSender, unbounded_channel};
pub use weak::{WeakSender, WeakUnboundedSender};
