//! Faults on which the kernel must fail with a message and a status other than 0.

/// Causes the named fault; returns if the name is unknown.
pub(super) fn cause(fault: &str) {
    match fault {
        "panic" => panic!("as asked"),
        "overflow" => {
            overflow_stack(0);
        }
        "text" => crate::memory::write_to_text(),
        _ => {}
    }
}

#[allow(unconditional_recursion, reason = "the stack is to overflow")]
fn overflow_stack(n: usize) -> usize {
    let block = core::hint::black_box([n; 128]);
    overflow_stack(n + 1) + block[3]
}
