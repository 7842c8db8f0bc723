//! What programs that test have in common: a list of tests, a line for each, and a
//! status that counts what failed.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::future::Future;
use core::pin::Pin;

use crate::{Error, println};

/// What a test found wrong.
pub type Outcome = Result<(), String>;

/// A test of coroutines.
pub type Test = fn() -> Pin<Box<dyn Future<Output = Outcome>>>;

/// Returns from the test with the reason unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($arg:tt)+) => {
        if !$condition {
            return Err(alloc::format!($($arg)+));
        }
    };
}

/// Names the tests of a program: the constant `TESTS`, for [`run_all`].
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        const TESTS: &[(&str, $crate::testing::Test)] =
            &[$((stringify!($name), || alloc::boxed::Box::pin($name()))),*];
    };
}

/// Says how a test ended.
#[must_use]
pub fn passed(name: &str, outcome: Outcome) -> bool {
    match outcome {
        Ok(()) => {
            println!("test {name} ... ok");
            true
        }
        Err(reason) => {
            println!("test {name} ... FAILED: {reason}");
            false
        }
    }
}

/// Runs the tests one after the other; how many failed is the program's status.
pub async fn run_all(tests: &[(&str, Test)]) -> isize {
    let mut failed = 0;
    for (name, test) in tests {
        failed += isize::from(!passed(name, test().await));
    }
    failed
}

/// An error as the reason of a failure.
#[must_use]
pub fn text(error: Error) -> String {
    format!("{error}")
}
