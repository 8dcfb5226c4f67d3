package arch

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "poolmgr"

// source is one Go file of the module.
type source struct {
	path      string // under the module
	file      *ast.File
	fset      *token.FileSet
	lines     int
	test      bool
	generated bool
}

func (s source) dir() string { return path.Dir(s.path) }

func (s source) at(n ast.Node) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// sources parses every Go file of the module, whatever its build tags; folders with a go.mod of their own are others'.
func sources(t *testing.T) []source {
	t.Helper()
	root := moduleRoot(t)
	var all []source
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(name, "go.mod"))
			skip := strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin" || nested == nil
			if name != root && skip {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(rel), fset: token.NewFileSet(), lines: bytes.Count(text, []byte("\n"))}
		s.test = strings.HasSuffix(name, "_test.go")
		if s.file, err = parser.ParseFile(s.fset, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return err
		}
		s.generated = ast.IsGenerated(s.file)
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("found only %d Go files under %s", len(all), root)
	}
	return all
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}

func matches(pattern, pkg string) bool {
	base, below := strings.CutSuffix(pattern, "/...")
	return pkg == base || below && strings.HasPrefix(pkg, base+"/")
}

func matchesAny(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, pkg) })
}

func roomOf(pkg string) (room, bool) {
	var best room
	for _, r := range rooms {
		if matches(r.pattern, pkg) && len(r.pattern) > len(best.pattern) {
			best = r
		}
	}
	return best, best.pattern != ""
}

// TestImports checks the arrows between the rooms. Test files may import what they like: they are not built into
// anything.
func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		r, known := roomOf(s.dir())
		if !known {
			t.Errorf("%s: no rule for this package: add a room to rules_test.go, with its reason, or put the file where it belongs", s.path)
			continue
		}
		for _, spec := range s.file.Imports {
			target, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if !allowed(r, target) {
				t.Errorf("%s: %s must not import %s: %s", s.at(spec), r.pattern, target, r.why)
			}
		}
	}
}

func allowed(r room, target string) bool {
	if inside, ours := strings.CutPrefix(target, module+"/"); ours {
		return matchesAny(r.may, inside) || strings.HasSuffix(r.pattern, "/...") && matches(r.pattern, inside)
	}
	first, _, _ := strings.Cut(target, "/")
	if !strings.Contains(first, ".") || r.external == nil { // the standard library has no dot in its first element
		return true
	}
	return slices.ContainsFunc(r.external, func(prefix string) bool {
		return target == prefix || strings.HasPrefix(target, prefix+"/")
	})
}

// TestRoomsSayWhy: a rule without a reason is an order.
func TestRoomsSayWhy(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rooms {
		if r.why == "" || seen[r.pattern] {
			t.Errorf("room %s has no reason, or is there twice", r.pattern)
		}
		seen[r.pattern] = true
	}
}

// TestPackageDocs: every package says its job and its limits, once.
func TestPackageDocs(t *testing.T) {
	docs, names := map[string][]string{}, map[string]string{}
	for _, s := range sources(t) {
		if s.test || s.generated {
			continue
		}
		names[s.dir()] = s.file.Name.Name
		if s.file.Doc != nil {
			docs[s.dir()] = append(docs[s.dir()], s.path)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(names)) {
		switch found := docs[pkg]; {
		case len(found) == 0:
			t.Errorf("%s: no file has a package comment", pkg)
		case len(found) > 1:
			t.Errorf("%s: %d files have a package comment, keep one: %v", pkg, len(found), found)
		}
		if slices.Contains(vagueNames, names[pkg]) || slices.Contains(vagueNames, path.Base(pkg)) {
			t.Errorf("%s: %q says nothing about what is inside: name the package after its noun or technology", pkg, names[pkg])
		}
	}
}

// TestPurePackages: no clock, no randomness, nothing of the outside world where values decide.
func TestPurePackages(t *testing.T) {
	for _, s := range sources(t) {
		for _, p := range pure {
			if s.test || !matches(p.pattern, s.dir()) {
				continue
			}
			for _, spec := range s.file.Imports {
				if target, _ := strconv.Unquote(spec.Path.Value); slices.Contains(p.imports, target) {
					t.Errorf("%s: %s must not import %s: %s", s.at(spec), p.pattern, target, p.why)
				}
			}
			ast.Inspect(s.file, func(n ast.Node) bool {
				if name, ok := selected(n, "time"); ok && slices.Contains(clocks, name) {
					t.Errorf("%s: %s must not use time.%s: %s", s.at(n), p.pattern, name, p.why)
				}
				if _, ok := n.(*ast.GoStmt); ok {
					t.Errorf("%s: %s must not start goroutines: %s", s.at(n), p.pattern, p.why)
				}
				return true
			})
		}
	}
}

// selected is the name in an expression "pkg.Name".
func selected(n ast.Node, pkg string) (string, bool) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok || x.Name != pkg {
		return "", false
	}
	return sel.Sel.Name, true
}

// TestGoroutinesHaveOwners finds go statements, Go methods (errgroup, WaitGroup) and AfterFunc outside the rooms that
// may start goroutines.
func TestGoroutinesHaveOwners(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.generated {
			continue
		}
		owner := false
		for _, g := range goroutines {
			owner = owner || matches(g.pattern, s.dir())
		}
		if owner {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if starts(n) {
				t.Errorf("%s: a goroutine starts here: let the caller's goroutine do it, or move it to a room that owns goroutines (see rules_test.go)", s.at(n))
			}
			return true
		})
	}
}

func starts(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.CallExpr:
		sel, ok := n.Fun.(*ast.SelectorExpr)
		return ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "AfterFunc")
	default:
		return false
	}
}

func TestLengths(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated {
			continue
		}
		limit := maxFileLines
		if s.test {
			limit = maxTestFileLines
		}
		if s.lines > limit {
			t.Errorf("%s has %d lines, at most %d: split it by responsibility", s.path, s.lines, limit)
		}
		if s.test {
			continue // tables of rows are long, and their length is no policy
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok {
				lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
				if lines > maxFunctionLines {
					t.Errorf("%s: %s has %d lines, at most %d", s.at(f), f.Name.Name, lines, maxFunctionLines)
				}
			}
			return true
		})
	}
}

// TestTheRulesBite: a rule that cannot fail protects nothing.
func TestTheRulesBite(t *testing.T) {
	for _, row := range []struct {
		pkg, target string
		want        bool
	}{
		{"internal/plan", "poolmgr/internal/pool", true},
		{"internal/plan", "poolmgr/internal/store", false},
		{"internal/plan", "google.golang.org/protobuf/proto", false},
		{"internal/plan", "slices", true},
		{"internal/pool", "poolmgr/api/poolmgr/v1alpha1", true},
		{"internal/pool", "poolmgr/internal/plan", false},
		{"internal/store/engine", "database/sql", true},
		{"internal/store/engine", "modernc.org/sqlite", false},
		{"internal/microvm/qemu", "poolmgr/internal/microvm/image", true},
		{"internal/microvm/guest", "poolmgr/internal/microvm/qemu", false},
		{"internal/microvm/qemu", "poolmgr/internal/pool", false},
		{"internal/cli", "poolmgr/internal/server", false},
		{"internal/lease", "poolmgr/internal/store/sqlite", false},
		{"cmd/poolmgrctl", "poolmgr/internal/clinic", false},
		{"client", "poolmgr/internal/pool", false},
	} {
		r, known := roomOf(row.pkg)
		if !known {
			t.Errorf("%s has no room", row.pkg)
			continue
		}
		if got := allowed(r, row.target); got != row.want {
			t.Errorf("%s may import %s = %t, want %t", row.pkg, row.target, got, row.want)
		}
	}
	if _, known := roomOf("internal/util"); known {
		t.Error("a package without a rule has a room")
	}
}
