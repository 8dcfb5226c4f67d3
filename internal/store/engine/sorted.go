package engine

import (
	"iter"
	"slices"
)

// maxChunk bounds what an insertion or a removal moves: 512 pointers are 4 kB.
const maxChunk = 512

// sorted is a set of rows in the total order of cmp. It is a list of short sorted lists, so that a change in the
// middle of 100,000 rows costs much the same as in the middle of 100.
type sorted[R any] struct {
	cmp    func(a, b *R) int
	chunks [][]*R // none is empty
	n      int
}

// find returns where the row's place is: the chunk, the index in it, and whether it is taken.
func (s *sorted[R]) find(row *R) (chunk, index int, taken bool) {
	if len(s.chunks) == 0 {
		return 0, 0, false
	}
	chunk, begins := slices.BinarySearchFunc(s.chunks, row, func(c []*R, row *R) int { return s.cmp(c[0], row) })
	if !begins {
		chunk = max(0, chunk-1)
	}
	index, taken = slices.BinarySearchFunc(s.chunks[chunk], row, s.cmp)
	return chunk, index, taken
}

// insert adds a row whose place is not taken yet.
func (s *sorted[R]) insert(row *R) {
	s.n++
	if len(s.chunks) == 0 {
		s.chunks = [][]*R{{row}}
		return
	}
	c, i, _ := s.find(row)
	s.chunks[c] = slices.Insert(s.chunks[c], i, row)
	if full := s.chunks[c]; len(full) > maxChunk {
		half := len(full) / 2
		s.chunks = slices.Insert(s.chunks, c+1, slices.Clone(full[half:]))
		s.chunks[c] = slices.Delete(full, half, len(full))
	}
}

// remove takes out the row of the same place.
func (s *sorted[R]) remove(row *R) {
	c, i, taken := s.find(row)
	if !taken {
		return
	}
	s.n--
	s.chunks[c] = slices.Delete(s.chunks[c], i, i+1)
	if len(s.chunks[c]) == 0 {
		s.chunks = slices.Delete(s.chunks, c, c+1)
	}
}

// replace puts a row in the place of the one that it replaces.
func (s *sorted[R]) replace(row *R) {
	if c, i, taken := s.find(row); taken {
		s.chunks[c][i] = row
	}
}

// first is the first row of a set that is not empty.
func (s *sorted[R]) first() *R { return s.chunks[0][0] }

// all are the rows in order.
func (s *sorted[R]) all() iter.Seq[*R] { return s.from(nil) }

// from are the rows in order that come after the place of a row, which need not be taken; nil = all.
func (s *sorted[R]) from(row *R) iter.Seq[*R] {
	chunk, index := 0, 0
	if row != nil {
		var taken bool
		if chunk, index, taken = s.find(row); taken {
			index++
		}
	}
	return func(yield func(*R) bool) {
		for c, i := chunk, index; c < len(s.chunks); c, i = c+1, 0 {
			for _, row := range s.chunks[c][i:] {
				if !yield(row) {
					return
				}
			}
		}
	}
}
