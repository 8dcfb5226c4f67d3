package pool_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	poolmgrv1alpha1 "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
)

// TestTransitions compares the whole table with a picture of it: rows are the phase before, columns the phase after.
func TestTransitions(t *testing.T) {
	var b strings.Builder
	for _, from := range pool.Phases {
		fmt.Fprintf(&b, "%-23s", from)
		for _, to := range pool.Phases {
			mark := " ."
			if from.CanBecome(to) {
				mark = " x"
			}
			b.WriteString(mark)
		}
		b.WriteString("\n")
	}
	want, err := os.ReadFile("testdata/transitions.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPhasesOnlyMoveForward(t *testing.T) {
	order := map[pool.Phase]int{
		pool.Provisioning: 0, pool.CreateHookRunning: 1, pool.Available: 2, pool.PreLeaseHookRunning: 3, pool.Leased: 4,
		pool.Quarantined: 5, pool.Failed: 5, pool.Deleting: 6,
	}
	for _, from := range pool.Phases {
		for _, to := range pool.Phases {
			if from.CanBecome(to) && order[to] <= order[from] {
				t.Errorf("%s may become %s", from, to)
			}
			if from.CanBecome(to) && from.Held() && to.Warm() {
				t.Errorf("a held VM may become %s again", to)
			}
			if from.CanBecome(to) && to == pool.Failed {
				t.Errorf("%s may become FAILED, which is never written", from)
			}
		}
		if from != pool.Deleting && !from.CanBecome(pool.Deleting) {
			t.Errorf("%s cannot be deleted", from)
		}
	}
	if pool.Phase("NONSENSE").CanBecome(pool.Deleting) {
		t.Error("an unknown phase has transitions")
	}
}

// TestWordsAreTheAPIs: the words of our types are the names of the API's enums, in both directions, so that nothing
// needs a table to translate them.
func TestWordsAreTheAPIs(t *testing.T) {
	for _, row := range []struct {
		goType  string
		enum    protoreflect.EnumDescriptor
		prefix  string   // of the API's words
		foreign []string // in the API, but never ours: a later release, or UNSPECIFIED
	}{
		{"Phase", poolmgrv1alpha1.VMPhase(0).Descriptor(), "", nil},
		{"Strategy", poolmgrv1alpha1.ReplenishmentStrategyType(0).Descriptor(), "", []string{"REPLENISHMENT_STRATEGY_TYPE_UNSPECIFIED"}},
		{"HookFailurePolicy", poolmgrv1alpha1.HookFailurePolicy(0).Descriptor(), "", []string{"HOOK_FAILURE_POLICY_UNSPECIFIED"}},
		{"ClaimPreference", poolmgrv1alpha1.ClaimPreference(0).Descriptor(), "", []string{"CLAIM_PREFERENCE_UNSPECIFIED"}},
		{"EventType", poolmgrv1alpha1.EventType(0).Descriptor(), "", []string{"EVENT_TYPE_UNSPECIFIED"}},
		{"RolloutState", poolmgrv1alpha1.RolloutState(0).Descriptor(), "ROLLOUT_STATE_", []string{"ROLLOUT_STATE_UNSPECIFIED"}},
	} {
		ours := constants(t, row.goType)
		theirs := map[string]bool{}
		for i := range row.enum.Values().Len() {
			theirs[string(row.enum.Values().Get(i).Name())] = true
		}
		for _, word := range ours {
			word = row.prefix + word
			if !theirs[word] {
				t.Errorf("%s %q is not in %s", row.goType, word, row.enum.FullName())
			}
			delete(theirs, word)
		}
		for _, word := range row.foreign {
			delete(theirs, word)
		}
		if len(theirs) > 0 {
			t.Errorf("%s has words that %s has not: %v", row.enum.FullName(), row.goType, theirs)
		}
	}
}

func TestEveryReasonHasItsEvent(t *testing.T) {
	seen := map[pool.EventType]string{}
	for _, reason := range constants(t, "Reason") {
		event := pool.Reason(reason).DeletedEvent()
		if other, dup := seen[event]; dup {
			t.Errorf("%s and %s both end as %s", reason, other, event)
		}
		seen[event] = reason
		if !strings.HasPrefix(string(event), "VM_DELETED_") {
			t.Errorf("%s ends as %s", reason, event)
		}
	}
	for reason, want := range map[pool.Reason]pool.EventType{
		pool.ReasonReleased:    "VM_DELETED_ON_RELEASE",
		pool.ReasonExpired:     "VM_DELETED_DUE_TO_EXPIRY",
		pool.ReasonRollout:     "VM_DELETED_FOR_ROLLOUT",
		pool.ReasonPoolDeleted: "VM_DELETED_ON_POOL_DELETE",
		pool.ReasonFailed:      "VM_DELETED_AFTER_FAILURE",
		"":                     "VM_DELETED_AFTER_FAILURE",
		"from a later release": "VM_DELETED_AFTER_FAILURE",
	} {
		if got := reason.DeletedEvent(); got != want {
			t.Errorf("%q ends as %s, want %s", reason, got, want)
		}
	}
}

// constants reads the package's own source for the string constants of a type, so that none can be forgotten here.
func constants(t *testing.T, goType string) []string {
	t.Helper()
	var values []string
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != goType {
				return true
			}
			if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
				value, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, value)
			}
			return true
		})
	}
	if len(values) == 0 {
		t.Fatalf("no constants of type %s found", goType)
	}
	return values
}

func TestLimit(t *testing.T) {
	count := func(n int) pool.Limit { return pool.Limit{Kind: pool.LimitCount, Value: n} }
	percent := func(n int) pool.Limit { return pool.Limit{Kind: pool.LimitPercent, Value: n} }
	for _, row := range []struct {
		limit                   pool.Limit
		desired, fallback, want int
	}{
		{pool.Limit{}, 5, 1, 1},
		{pool.Limit{}, 5, 0, 0},
		{pool.Limit{}, 0, 1, 0}, // clamped to the warm set
		{count(0), 5, 1, 0},     // an explicit 0 is a pause, not a default
		{count(2), 5, 1, 2},
		{count(50), 3, 1, 3},
		{count(-1), 3, 1, 0},
		{percent(0), 5, 1, 0},
		{percent(1), 5, 1, 1},
		{percent(25), 5, 1, 2},
		{percent(30), 3, 1, 1},
		{percent(34), 3, 1, 2},
		{percent(100), 7, 1, 7},
		{percent(100), 0, 1, 0},
		{percent(50), -3, 1, 0},
		{percent(1), 100_000, 1, 1000},
	} {
		if got := row.limit.Of(row.desired, row.fallback); got != row.want {
			t.Errorf("%+v of %d (unset is %d) = %d, want %d", row.limit, row.desired, row.fallback, got, row.want)
		}
	}
}

func TestDesired(t *testing.T) {
	for _, row := range []struct {
		strategy          pool.Strategy
		size, min         int
		slots, held, want int
	}{
		{pool.ImmediateOnLease, 3, 0, 0, 0, 3},
		{pool.ImmediateOnLease, 3, 0, 3, 7, 3},
		{pool.ReplaceOnDelete, 3, 0, 3, 0, 3},
		{pool.ReplaceOnDelete, 3, 0, 1, 2, 1},
		{pool.ReplaceOnDelete, 3, 0, 0, 4, 0}, // more are held than the size says
		{pool.MinSizeThreshold, 5, 2, 1, 4, 5},
		{pool.MinSizeThreshold, 5, 2, 2, 3, 2},
		{pool.MinSizeThreshold, 5, 2, 4, 1, 4},
		{pool.MinSizeThreshold, 5, 2, 9, 0, 5},
	} {
		spec := pool.Spec{Strategy: row.strategy, Size: row.size, MinSize: row.min}
		if got := spec.Desired(row.slots, row.held); got != row.want {
			t.Errorf("%s size %d min %d: %d slots, %d held: desired %d, want %d",
				row.strategy, row.size, row.min, row.slots, row.held, got, row.want)
		}
	}
}

func TestBackoff(t *testing.T) {
	for _, row := range []struct {
		attempt int
		jitter  float64
		want    time.Duration
	}{
		{-5, 0.5, time.Second},
		{0, 0.5, time.Second},
		{1, 0.5, time.Second},
		{2, 0.5, 2 * time.Second},
		{3, 0.5, 4 * time.Second},
		{6, 0.5, 32 * time.Second},
		{7, 0.5, 60 * time.Second},
		{1 << 40, 0.5, 60 * time.Second},
		{1, 0, 800 * time.Millisecond},
		{1, 1, 1200 * time.Millisecond},
		{100, 1, 72 * time.Second},
	} {
		if got := pool.Backoff(row.attempt, row.jitter); got != row.want {
			t.Errorf("Backoff(%d, %g) = %s, want %s", row.attempt, row.jitter, got, row.want)
		}
	}
}

func TestClaimable(t *testing.T) {
	up, down := pool.Host{Reachable: true, Cordoned: true}, pool.Host{}
	for _, row := range []struct {
		phase  pool.Phase
		health pool.Health
		host   pool.Host
		want   bool
	}{
		{pool.Available, pool.HealthGood, up, true},
		{pool.Available, "", up, true}, // never probed since a restart counts as good
		{pool.Available, pool.HealthUnknown, up, false},
		{pool.Available, pool.HealthBroken, up, false},
		{pool.Available, pool.HealthGood, down, false},
		{pool.CreateHookRunning, pool.HealthGood, up, false},
		{pool.Leased, pool.HealthGood, up, false},
	} {
		if got := pool.Claimable(pool.VM{Phase: row.phase, Health: row.health}, row.host); got != row.want {
			t.Errorf("%+v: claimable = %t", row, got)
		}
	}
}

func TestStaleAndMinReady(t *testing.T) {
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	p := pool.Pool{TemplateHash: "v1:b", Revision: 3, Restart: 1, Spec: pool.Spec{Rollout: pool.RolloutPolicy{MinReady: time.Minute}}}
	vm := pool.VM{Phase: pool.Available, TemplateHash: "v1:b", Revision: 1, Restart: 1, AvailableAt: now}
	if vm.Stale(p) {
		t.Error("a VM of an earlier revision with the same template is stale: going back must find it current")
	}
	for age, want := range map[time.Duration]bool{0: false, time.Minute - 1: false, time.Minute: true} {
		if got := vm.CountsReady(p, now.Add(age)); got != want {
			t.Errorf("after %s counts = %t, want %t", age, got, want)
		}
	}
	restarted := vm
	restarted.Restart = 0
	if !restarted.Stale(p) || !restarted.CountsReady(p, now) {
		t.Error("a VM from before a restart must be stale, and counts whatever its age")
	}
}
