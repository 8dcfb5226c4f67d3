package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/memory"
)

// constants reads the values of a string type from their source, so that a new one that nothing here knows fails.
func constants(t *testing.T, path, typeName string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == typeName && len(spec.Values) == 1 {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
		}
		return true
	})
	if len(all) == 0 {
		t.Fatalf("no constants of type %s in %s", typeName, path)
	}
	return all
}

// The words of the nouns are those of the API: a word that it does not know would be shown as another.
func TestTheAPIKnowsEveryWord(t *testing.T) {
	for _, c := range []struct {
		path, typeName, prefix string
		values                 map[string]int32
	}{
		{"../pool/phase.go", "Phase", "", pb.VMPhase_value},
		{"../pool/event.go", "EventType", "", pb.EventType_value},
		{"../pool/spec.go", "Strategy", "", pb.ReplenishmentStrategyType_value},
		{"../pool/spec.go", "HookFailurePolicy", "", pb.HookFailurePolicy_value},
		{"../pool/spec.go", "ClaimPreference", "", pb.ClaimPreference_value},
		{"../pool/state.go", "RolloutState", "ROLLOUT_STATE_", pb.RolloutState_value},
	} {
		for _, word := range constants(t, c.path, c.typeName) {
			if _, known := c.values[c.prefix+word]; !known {
				t.Errorf("the API has no word %s%s for a %s", c.prefix, word, c.typeName)
			}
		}
	}
}

// grpcWords is gRPC's own spelling of a code.
func grpcWords(c codes.Code) string {
	var words strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			words.WriteByte('_')
		}
		words.WriteRune(r)
	}
	return strings.ToUpper(words.String())
}

func TestEveryCodeOfARefusalHasItsOwn(t *testing.T) {
	all := constants(t, "../pool/errors.go", "Code")
	if len(all) < 11 {
		t.Fatalf("found only %v", all)
	}
	for _, word := range all {
		code := pool.Code(word)
		st := status.Convert(toStatus(t.Context(), slog.New(slog.DiscardHandler), "/x", fmt.Errorf("outer secret: %w",
			&pool.Error{Code: code, Message: "a sentence", Err: errors.New("inner secret")})))
		if grpcWords(st.Code()) != string(code) || st.Message() != "a sentence" {
			t.Errorf("%s becomes %s: %q", code, st.Code(), st.Message())
		}
		hasHint := false
		for _, d := range st.Details() {
			_, is := d.(*errdetails.RetryInfo)
			hasHint = hasHint || is
		}
		if hasHint != (code == pool.CodeExhausted) {
			t.Errorf("%s: retry hint %v", code, hasHint)
		}
	}
	if len(codeOf) != len(all) {
		t.Errorf("%d codes, %d mapped", len(all), len(codeOf))
	}
}

func TestOtherErrorsAndWhatTheyTell(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		code codes.Code
	}{
		"unknown":                    {t.Context(), errors.New("secret"), codes.Internal},
		"unmapped code":              {t.Context(), pool.Errorf("STRANGE", "secret"), codes.Internal},
		"the caller's cancellation":  {gone, fmt.Errorf("secret: %w", context.Canceled), codes.Canceled},
		"somebody else's":            {t.Context(), fmt.Errorf("secret: %w", context.Canceled), codes.Internal},
		"deadline":                   {t.Context(), fmt.Errorf("secret: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		"conflict":                   {t.Context(), fmt.Errorf("secret: %w", store.ErrConflict), codes.Aborted},
		"closed":                     {t.Context(), fmt.Errorf("secret: %w", store.ErrClosed), codes.Unavailable},
		"broken":                     {t.Context(), fmt.Errorf("secret: %w", store.ErrBroken), codes.Unavailable},
		"fenced":                     {t.Context(), fmt.Errorf("secret: %w", store.ErrFenced), codes.Unavailable},
		"illegal transition":         {t.Context(), fmt.Errorf("secret: %w", store.ErrIllegalTransition), codes.Internal},
		"a host that is away":        {t.Context(), fmt.Errorf("secret: %w", host.ErrUnreachable), codes.Unavailable},
		"a host's own status":        {t.Context(), fmt.Errorf("host: %w", status.Error(codes.NotFound, "secret")), codes.Internal},
		"the stream's own status":    {t.Context(), status.Error(codes.ResourceExhausted, "message too large"), codes.ResourceExhausted},
		"a refusal among other ones": {t.Context(), errors.Join(pool.Errorf(pool.CodeNotFound, "it is gone"), errors.New("secret")), codes.NotFound},
	} {
		st := status.Convert(toStatus(c.ctx, slog.New(slog.DiscardHandler), "/x", c.err))
		if st.Code() != c.code || st.Message() == "" {
			t.Errorf("%s: %v", name, st)
		}
		if strings.Contains(st.Message(), "secret") {
			t.Errorf("%s leaks: %q", name, st.Message())
		}
	}
}

func TestWhatIsNotToldIsLogged(t *testing.T) {
	var logged bytes.Buffer
	_ = toStatus(t.Context(), slog.New(slog.NewTextHandler(&logged, nil)), "/poolmgr/Thing", errors.New("the disk is full"))
	for _, text := range []string{"/poolmgr/Thing", "the disk is full"} {
		if !strings.Contains(logged.String(), text) {
			t.Errorf("the log does not tell %q: %s", text, logged.String())
		}
	}
}

func TestAPanicEndsOneCallOnly(t *testing.T) {
	panics := 0
	log := slog.New(slog.DiscardHandler)
	_, err := UnaryErrors(log, func() { panics++ })(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"},
		func(context.Context, any) (any, error) { panic("secret") })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("unary: %v", err)
	}
	err = StreamErrors(log, func() { panics++ })(nil, fakeStream{ctx: t.Context()}, &grpc.StreamServerInfo{FullMethod: "/x"},
		func(any, grpc.ServerStream) error { panic(errors.New("secret")) })
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("stream: %v", err)
	}
	if panics != 2 {
		t.Errorf("%d panics were counted", panics)
	}
}

// The store recovers from what its verbs do wrong; what escapes it is better survived by a restart.
func TestAPanicInsideTheStoreIsNotSwallowed(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("the panic was swallowed")
		}
	}()
	st := memory.New()
	defer st.Close()
	var none context.Context
	_, _ = UnaryErrors(slog.New(slog.DiscardHandler), func() {})(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/x"},
		func(context.Context, any) (any, error) { return st.GetPool(none, pool.Key{}) })
}

type fakeStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream's own
}

func (s fakeStream) Context() context.Context { return s.ctx }

func TestClip(t *testing.T) {
	for in, want := range map[string]string{"short": "short", "longer than it": "longer th…", "ok \xff": "ok \uFFFD", "abcdefgh\u00e9x": "abcdefgh…"} {
		if got := clip(in, 9); got != want {
			t.Errorf("clip(%q) = %q, want %q", in, got, want)
		}
	}
}
