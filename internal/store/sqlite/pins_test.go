package sqlite

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// TestLibcIsTheOneOfSQLite: modernc.org/sqlite is translated C that fits one version of modernc.org/libc, which a stray
// upgrade of other modules can replace without any error at build time.
func TestLibcIsTheOneOfSQLite(t *testing.T) {
	sqliteMod := goTool(t, "list", "-m", "-f", "{{.GoMod}}", "modernc.org/sqlite")
	var want struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal([]byte(goTool(t, "mod", "edit", "-json", sqliteMod)), &want); err != nil {
		t.Fatalf("read %s: %v", sqliteMod, err)
	}
	have := goTool(t, "list", "-m", "-f", "{{.Version}}", "modernc.org/libc")
	for _, module := range want.Require {
		if module.Path == "modernc.org/libc" {
			if module.Version != have {
				t.Errorf("modernc.org/libc is %s, and this modernc.org/sqlite needs exactly %s: go get modernc.org/libc@%s", have, module.Version, module.Version)
			}
			return
		}
	}
	t.Errorf("%s does not name modernc.org/libc", sqliteMod)
}

// goTool runs the go command, without network.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(cmd.Environ(), "GOPROXY=off")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}
