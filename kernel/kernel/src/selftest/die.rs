//! Ways in which the kernel must fail, loudly and with a status that is not 0.

/// Fails as asked; returns if nothing of the kind is asked.
pub(super) fn now(how: &str) {
    match how {
        "panic" => panic!("as asked"),
        "overflow" => {
            deep(0);
        }
        "text" => crate::memory::write_to_text(),
        _ => {}
    }
}

#[allow(unconditional_recursion, reason = "that is the point")]
fn deep(n: usize) -> usize {
    let block = core::hint::black_box([n; 128]);
    deep(n + 1) + block[3]
}
