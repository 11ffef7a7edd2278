//! Passing on the lead.
//!
//! A worker that took its request from the library itself, and is the only one with work, goes on
//! leading while it only computes (`server::roster`): calling the next one costs a tenth of all that
//! it does. Whatever may wait calls [`pass_on`] before, on any thread.

use std::cell::{Cell, OnceCell};

/// What ends a term, told its number.
type Call = Box<dyn Fn(u64)>;

thread_local! {
    /// The term in which this thread leads; 0 = it does not.
    static TERM: Cell<u64> = const { Cell::new(0) };
    static CALL: OnceCell<Call> = const { OnceCell::new() };
}

/// From now on `call` ends this thread's terms.
pub(crate) fn ends_with(call: impl Fn(u64) + 'static) {
    let _ = CALL.with(|cell| cell.set(Box::new(call)));
}

/// This thread leads now. Terms are counted from 1.
pub(crate) fn begin(term: u64) {
    TERM.set(term);
}

/// This thread leads no longer, and sees to its successor itself; gives the term, if there was one.
pub(crate) fn end() -> Option<u64> {
    Some(TERM.take()).filter(|term| *term != 0)
}

/// Whether this thread leads.
pub(crate) fn is_held() -> bool {
    TERM.get() != 0
}

/// Calls the next leader, if this thread leads.
pub(crate) fn pass_on() {
    if let Some(term) = end() {
        CALL.with(|cell| cell.get().into_iter().for_each(|call| call(term)));
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_term_is_passed_on_once() {
        let ended = Rc::<Cell<u64>>::default();
        let seen = Rc::clone(&ended);
        ends_with(move |term| seen.set(10 * seen.get() + term));
        pass_on();
        begin(1);
        assert!(is_held());
        pass_on();
        pass_on();
        assert!(ended.get() == 1 && !is_held());
        begin(2);
        assert_eq!((end(), end()), (Some(2), None));
        pass_on();
        assert_eq!(ended.get(), 1);
    }
}
