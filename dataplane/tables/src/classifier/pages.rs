//! Copy-on-write arrays: a copy of an array shares all pages with the array, and a change copies only the changed page.

use std::sync::Arc;

/// A growing array. A page has `PAGE` elements.
#[derive(Clone, Debug)]
pub(super) struct Pages<T, const PAGE: usize> {
    pages: Vec<Arc<[T; PAGE]>>,
    len: usize,
}

impl<T, const PAGE: usize> Default for Pages<T, PAGE> {
    fn default() -> Self {
        Self { pages: Vec::new(), len: 0 }
    }
}

impl<T: Clone, const PAGE: usize> Pages<T, PAGE> {
    /// Adds `count` elements in a single page, and returns the index of the first added element.
    pub(super) fn grow(&mut self, count: usize, element: &T) -> usize {
        if self.len % PAGE + count > PAGE {
            self.len = self.len.next_multiple_of(PAGE);
        }
        let first = self.len;
        self.len += count;
        if self.pages.len() * PAGE < self.len {
            let page: Arc<[T]> = std::iter::repeat_n(element.clone(), PAGE).collect();
            self.pages.extend(page.try_into().ok());
        }
        first
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        Some(&self.pages.get(at / PAGE)?[at % PAGE])
    }

    /// Returns the elements from an index to the end of its page.
    #[inline]
    pub(super) fn from(&self, at: usize) -> &[T] {
        self.pages.get(at / PAGE).map_or(&[], |page| &page[at % PAGE..])
    }

    /// Returns an element so that the caller can change it. Copies of the array do not see the change.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        Some(&mut Arc::make_mut(self.pages.get_mut(at / PAGE)?)[at % PAGE])
    }

    /// Returns the memory of the array in bytes, including shared pages.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.pages.len() * PAGE * size_of::<T>()
    }

    /// Returns how many pages this array does not share with `other`.
    #[cfg(test)]
    pub(super) fn differing(&self, other: &Self) -> usize {
        let same = |(ours, theirs): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(ours, theirs);
        self.pages.len() - self.pages.iter().zip(&other.pages).filter(|pair| same(*pair)).count()
    }
}
