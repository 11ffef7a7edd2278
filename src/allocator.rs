//! One setting of the C library's allocator.

/// Blocks from this size on, in bytes, have pages of their own. Fresh pages cost a body of 10 MB
/// six milliseconds of processor time; the prompts of every day stay below.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 1024 * 1024;

/// From now on the memory of a large block goes back to the system when it is freed.
///
/// glibc begins like that, but raises its limit with every large block that is freed, up to 32
/// MiB. The next body then lies in the heap of whichever thread received it, and what lies above
/// it keeps that heap large: at a body of 10 MB in a hundred requests an idle proxy held 130 MB
/// after six minutes, and went on growing. Other C libraries have no such setting.
pub(crate) fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "nobody has wrapped this function")]
    // SAFETY: it sets a number under the allocator's own lock.
    let _ = unsafe { nix::libc::mallopt(nix::libc::M_MMAP_THRESHOLD, LARGE) };
}
