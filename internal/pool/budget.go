package pool

// LimitKind tells an unset limit from a count and a percent: an explicit zero is a pause, unset is the default.
type LimitKind string

// The kinds of limit.
const (
	LimitUnset   LimitKind = ""
	LimitCount   LimitKind = "COUNT"
	LimitPercent LimitKind = "PERCENT"
)

// Limit is a count of slots or a percent of the warm set.
type Limit struct {
	Kind  LimitKind
	Value int // count >= 0, percent 0..100
}

// Of resolves the limit for a warm set of desired slots. Unset gives fallback. A percent rounds up, so that a small
// one still moves (1 % of 5 is 1), and every result is clamped to 0..desired:
//
//	25 % of 5 = 2; 30 % of 3 = 1; 0 % of 5 = 0; 50 of 3 = 3
func (l Limit) Of(desired, fallback int) int {
	n := fallback
	switch l.Kind {
	case LimitCount:
		n = l.Value
	case LimitPercent:
		n = (desired*l.Value + 99) / 100
	}
	return min(max(n, 0), max(desired, 0))
}

// Desired is the number of slots the strategy asks for, given the slots that are filled and the VMs that are held.
func (s Spec) Desired(slots, held int) int {
	switch s.Strategy {
	case ReplaceOnDelete:
		return max(0, s.Size-held)
	case MinSizeThreshold:
		if slots < s.MinSize {
			return s.Size
		}
		return min(slots, s.Size)
	default:
		return s.Size
	}
}
