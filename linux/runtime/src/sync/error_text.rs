//! Macros for the errors of the synchronization primitives. `error_text` implements `Display`, with
//! a text for each variant, and `Error`; `send_error` defines the error of a send when there is no
//! receiver, which returns the value.

macro_rules! error_text {
    ([$($generics:tt)*] $error:ty { $($variant:pat => $text:expr),+ $(,)? }) => {
        impl<$($generics)*> std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $($variant => $text),+
                })
            }
        }

        impl<$($generics)*> std::error::Error for $error {}
    };
}

macro_rules! send_error {
    ($doc:literal, $text:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct SendError<T>(pub T);

        impl<T> std::fmt::Debug for SendError<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("SendError").finish_non_exhaustive()
            }
        }

        $crate::sync::error_text::error_text!([T] SendError<T> { SendError(_) => $text });
    };
}

pub(super) use error_text;
pub(super) use send_error;
