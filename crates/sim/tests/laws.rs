//! Each law over generated cases, a second of them each; `cargo xtask soak` runs a million.

use upshift_sim::{Family, Law, search};

const LAWS: [Law; 4] = [Law::Order, Law::Conservation, Law::Progress, Law::Truth];
const CASES: u32 = if cfg!(debug_assertions) { 250 } else { 4_000 };

/// The law holds in generated cases of the family.
fn holds(law: Law, family: Family) {
    let others: Vec<Law> = LAWS.into_iter().filter(|other| *other != law).collect();
    if let Err(found) = search(family, CASES, law as u64, &others) {
        panic!("{found}");
    }
}

#[test]
fn order_on_a_vcpu() {
    holds(Law::Order, Family::ONE);
    holds(Law::Order, Family::ONE.preemptible());
}

#[test]
fn order_across_vcpus() {
    holds(Law::Order, Family::SEVERAL);
    holds(Law::Order, Family::SEVERAL.preemptible());
}

#[test]
fn conservation_on_a_vcpu() {
    holds(Law::Conservation, Family::ONE);
    holds(Law::Conservation, Family::ONE.preemptible());
}

#[test]
fn conservation_across_vcpus() {
    holds(Law::Conservation, Family::SEVERAL);
    holds(Law::Conservation, Family::SEVERAL.preemptible());
}

#[test]
fn progress_across_vcpus() {
    holds(Law::Progress, Family::SEVERAL);
    holds(Law::Progress, Family::SEVERAL.preemptible());
}

#[test]
fn progress_on_a_vcpu() {
    holds(Law::Progress, Family::ONE);
    holds(Law::Progress, Family::ONE.preemptible());
}

#[test]
fn truth_on_a_vcpu() {
    holds(Law::Truth, Family::ONE);
    holds(Law::Truth, Family::ONE.preemptible());
}

#[test]
fn truth_across_vcpus() {
    holds(Law::Truth, Family::SEVERAL);
    holds(Law::Truth, Family::SEVERAL.preemptible());
}
