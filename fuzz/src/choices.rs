//! Makes choices from the fuzzer's bytes. When no byte is left, every choice is the first one.

use arbitrary::Unstructured;

pub(crate) trait Choices<'a> {
    fn byte(&mut self) -> u8;

    fn i32(&mut self) -> i32;

    fn i64(&mut self) -> i64;

    /// Returns a number below `count`, or 0 if `count` is 0.
    fn index(&mut self, count: usize) -> usize;

    fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.index(among.len())]
    }

    /// Returns at most 255 of the bytes.
    fn some_bytes(&mut self) -> &'a [u8];
}

impl<'a> Choices<'a> for Unstructured<'a> {
    fn byte(&mut self) -> u8 {
        self.arbitrary().unwrap()
    }

    fn i32(&mut self) -> i32 {
        self.arbitrary().unwrap()
    }

    fn i64(&mut self) -> i64 {
        self.arbitrary().unwrap()
    }

    fn index(&mut self, count: usize) -> usize {
        self.int_in_range(0..=count.saturating_sub(1)).unwrap()
    }

    fn some_bytes(&mut self) -> &'a [u8] {
        let count = self.index(256).min(self.len());
        self.bytes(count).unwrap()
    }
}
